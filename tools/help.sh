# shellcheck shell=bash
# What ./dev says of itself. It reads no file and needs no package, so that it can be asked first.

help() {
    cat <<'TEXT'
usage: ./dev COMMAND

  demo [PROMPT]      build the library and ask a small language model, whose attention it computes
  demo sentences     the same with a model that finds sentences which mean the same
  demo train         train a small language model with torch, whose attention it computes
  test [STEP...]     run the steps that are named, and those that they need:
                       all     every step but engines, the default
                       quick   the fast steps, for use between two edits
                       --list  run none, but list them
  test --of FILE...  name the tests of source files, and run those that this machine can run;
                     after --list, name them alone
  bench [ARGUMENTS]  measure overheads of calls, and CPU kernels beside the rates that the
                     processor can reach; arguments are google-benchmark's
  build              build the library and the tests into build/gcc
  build-cost [-DNAME=VALUE...]
                     compile the library anew, and print what processor time that takes; with
                     the CUDA kernels, if -DFLASH_CUDA=ON says so
  wheel [-DNAME=VALUE...]
                     make a wheel for every Linux with glibc 2.28 or newer, in build/wheelhouse;
                     CMake's options are those of a build, as -DFLASH_CUDA=OFF
  release [-DNAME=VALUE...]
                     make the source archive of the last commit, and of it wheels and Debian
                     packages, in build/releases: the same bytes each time
  docs               build a site of the guides and the references of the C, C++ and Python APIs
                     into build/docs
  format             format C, CUDA and Python in place
  manifest           record the kernels of an installed library in codegen/ship.manifest
  abi-baseline       record the binary interface in tests/abi
  help               this text; `./dev COMMAND --help` explains a command and does nothing else

The commands install what they need: Debian packages (as root or by sudo, else they print the one
command that does), and Python packages into build/venv. Where nothing can be installed, demo takes
the system's Python with what it has. Logs are in build/log.
TEXT
}

# The options of the demos' programs, which also explain themselves, but need Python for that.
help_of_chat() {
    cat <<'TEXT'
usage: ./dev demo [PROMPT] [OPTION...]

Builds the library, asks a small language model, whose attention it computes, and compares the
answer with attention in float64.

  PROMPT              the question
  --tokens N          tokens of the answer, at most (128)
  --lengths N...      lengths of prompts for which attention alone is timed (512 1024 2048 4096)
  --model FILE        a GGUF file, instead of the model that the demo installs

See examples/chat/README.md, and for other demos ./dev demo sentences --help, ./dev demo train
--help.
TEXT
}

help_of_sentences() {
    cat <<'TEXT'
usage: ./dev demo sentences [OPTION...]

Builds the library, and finds the passages that mean the same as sentences, by a transformer whose
attention the library computes.

  --query SENTENCE    a sentence of your own; repeat it for more
  --repeats N         timed runs (5)
  --model FOLDER      a folder with the model, instead of the one that the demo installs
TEXT
}

help_of_train() {
    cat <<'TEXT'
usage: ./dev demo train [OPTION...]

Builds the library, trains a small GPT with torch on the source of Python's own library, by the
library's attention and beside it by torch's, and compares the losses. torch must be installed.

  --steps N           steps of training (1200)
  --batch N           texts of a step (12)
  --context N         characters of a text (64)
  --seed N            of weights and texts (0)
  --device NAME       cpu (the default), or cuda: a GPU, in bfloat16
  --plot FILE         draw the losses into FILE by matplotlib
TEXT
}

# Prints the part of the text above that is about a command.
help_of() { # command
    echo "usage: ./dev $1"
    help | awk -v name="$1" '
        /^  [a-z]/ { shown = $1 == name }
        /^$/ { shown = 0 }
        shown { if (!n++) print ""; print }'
    printf '\n./dev help lists the other commands.\n'
}

asks_for_help() { # argument...
    local argument
    for argument; do
        [[ $argument != --help && $argument != -h ]] || return 0
    done
    return 1
}

is_command() { # command
    help | awk -v name="$1" '/^  [a-z]/ && $1 == name { found = 1 } END { exit !found }'
}

explain() { # command, argument...
    is_command "$1" || refuse "there is no command '$1'"
    case "$1 ${2:-}" in
    "demo sentences") help_of_sentences ;;
    "demo train") help_of_train ;;
    demo*) help_of_chat ;;
    test*) help_of test && printf '\nThe steps:\n\n' && list_steps ;;
    *) help_of "$1" ;;
    esac
}
