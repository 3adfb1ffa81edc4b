#!/bin/bash
# A compiler launcher that notes the processor time of each compilation: user, system, object.
#
# usage: timed.sh NOTES COMPILER ARGUMENT...
notes=$1 object='' before=''
shift
for argument; do
    [ "$before" != -o ] || object=$argument
    before=$argument
done
TIMEFORMAT="%U %S ${object//%/%%}"
{ time "$@" 2>&3; } 3>&2 2>>"$notes"
