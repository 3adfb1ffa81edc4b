# shellcheck shell=bash
# Runs the long parts of a command. A line says which part runs, since when, and where its log is;
# another line has its result and how long it took.

COSTS=()   # of what ran: processor and wall time in tenths of a second, name
SKIPPED=77 # exit status of a part that this machine has no tools for
PART=      # "[2/3] " before the name of the second part of three

# Prints the tenths of a second since 1970.
clock() {
    echo $((${EPOCHREALTIME/[.,]/} / 100000))
}

# Sets PROCESSOR to the tenths of a second of processor time that this shell's children took.
processor_clock() {
    times >"$LOGS/times" # not in a pipe, which would be another shell with other children
    PROCESSOR=$(tr , . <"$LOGS/times" |
        awk -F '[ms ]+' 'NR == 2 { printf "%d", ($1 + $3) * 600 + ($2 + $4) * 10 }')
}

seconds() { # tenths of a second
    printf '%d.%d s' $(($1 / 10)) $(($1 % 10))
}

# Prints how far a build is that writes a log, as ninja says it: "[3/93]".
progress_of() { # log
    tail -c 4000 "$1" 2>/dev/null | tr '\r' '\n' | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -n 1 || true
}

# Prints the line of what runs, with the time since it began and how far it is, until it is killed or
# the script ends.
show_elapsed() { # label, log
    local since=$SECONDS elapsed progress
    while kill -0 $$ 2>/dev/null; do
        elapsed=$((SECONDS - since))
        progress=$(progress_of "$2")
        printf '\r\033[K%s  %d:%02d  %slog: %s ' "$1" $((elapsed / 60)) $((elapsed % 60)) \
            "${progress:+$progress  }" "$2"
        sleep 1
    done
}

# Runs a command with its output in a log, which is shown only when the command fails. STATUS is its
# exit status; if it is SKIPPED, the last line of the log says why. The command is not part of an
# `if` or `||`, because bash would then ignore failures inside of it.
run_logged() { # label, log, command...
    local name=$1 label=$PART$1 log=$2 begin elapsed processor took ticker=
    shift 2
    mkdir -p "$LOGS"
    begin=$(clock)
    processor_clock
    processor=$PROCESSOR
    if [ -t 1 ]; then
        show_elapsed "$label" "$log" &
        ticker=$!
    else
        printf '%s  since %(%H:%M:%S)T  log: %s\n' "$label" -1 "$log"
    fi
    set +e
    (set -e; "$@") >"$log" 2>&1 </dev/null
    STATUS=$?
    set -e
    if [ -n "$ticker" ]; then
        kill "$ticker" 2>/dev/null || true
        wait "$ticker" 2>/dev/null || true
        printf '\r\033[K'
    fi
    processor_clock
    processor=$((PROCESSOR - processor)) elapsed=$(($(clock) - begin))
    COSTS+=("$processor $elapsed $name")
    took="$(seconds $elapsed), processor $(seconds $processor)"
    case $STATUS in
    0) echo "$label  ok       $took" ;;
    "$SKIPPED") echo "$label  skipped  $(tail -n 1 "$log")" ;;
    *) echo "$label  FAILED   $took" && cat "$log" ;;
    esac
}

# Prints what cost how much, the dearest first.
print_costs() {
    printf '%s\n' "${COSTS[@]}" | sort -k 1,1nr -k 3 | awk '
        NR == 1 { printf "%10s %10s\n", "processor", "wall" }
        { printf "%8.1f s %8.1f s  ", $1 / 10, $2 / 10; print substr($0, index($0, $3)) }'
}
