# shellcheck shell=bash
# Runs the long parts of a command, also several at a time. A line says which part runs, since when,
# and where its log is; another line has its result and how long it took.

COSTS=()            # of what ran: processor and wall time in tenths of a second, name
SKIPPED=77          # exit status of a part that this machine has no tools for
PART=               # "[2/3] " before the name of the second part of three
declare -A RUNS=()  # of what runs, by its log: process group, second of the beginning, label

# Prints the tenths of a second since 1970.
clock() {
    echo $((${EPOCHREALTIME/[.,]/} / 100000))
}

# Sets PROCESSOR to the tenths of a second of processor time that this shell's children took.
processor_clock() { # file to use
    times >"$1" # not in a pipe, which would be another shell with other children
    PROCESSOR=$(tr , . <"$1" |
        awk -F '[ms ]+' 'NR == 2 { printf "%d", ($1 + $3) * 600 + ($2 + $4) * 10 }')
}

seconds() { # tenths of a second
    printf '%d.%d s' $(($1 / 10)) $(($1 % 10))
}

# Prints how far a build is that writes a log, as ninja says it: "[3/93]".
progress_of() { # log
    tail -c 4000 "$1" 2>/dev/null | tr '\r' '\n' | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -n 1 || true
}

# Prints what a line says of a run: its label, the time since it began, and how far it is.
describe_run() { # log
    local begun label elapsed progress
    read -r _ begun label <<<"${RUNS[$1]}"
    elapsed=$((SECONDS - begun))
    progress=$(progress_of "$1")
    printf '%s  %d:%02d  %slog: %s  ' "$label" $((elapsed / 60)) $((elapsed % 60)) \
        "${progress:+$progress  }" "$1"
}

# Prints the line of what runs in place of the one before, cut where the terminal's line ends.
show_runs() {
    local log line=
    for log in "${!RUNS[@]}"; do
        line+=$(describe_run "$log")'  '
    done
    printf '\r\033[K\033[?7l%s\033[?7h' "$line"
}

# Runs a command, and leaves its exit status, processor time and wall time in a file beside its log.
run_timed() { # log, command...
    local log=$1 begin status
    shift
    begin=$(clock)
    set +e
    (set -e; "$@") >"$log" 2>&1 </dev/null
    status=$?
    processor_clock "$log.cost"
    echo "$status $PROCESSOR $(($(clock) - begin))" >"$log.cost"
}

# Begins a command, which has a process group of its own, so that all of it can be ended. It is not
# part of an `if` or `||`, because bash would then ignore failures inside of it.
begin_run() { # label, log, command...
    local label=$PART$1 log=$2
    shift 2
    mkdir -p "$LOGS"
    rm -f "$log.cost"
    [ -t 1 ] || printf '%s  since %(%H:%M:%S)T  log: %s\n' "$label" -1 "$log"
    set -m
    run_timed "$log" "$@" &
    set +m
    RUNS[$log]="$! $SECONDS $label"
}

# Waits for one of what runs. Sets RAN to its name and STATUS to its exit status; if that is SKIPPED,
# the last line of the log says why.
await_run() {
    local log
    while :; do
        for log in "${!RUNS[@]}"; do
            kill -0 "${RUNS[$log]%% *}" 2>/dev/null || break 2
        done
        if [ -t 1 ]; then
            show_runs
            sleep 1 &
        fi
        wait -n || true
    done
    [ ! -t 1 ] || printf '\r\033[K'
    end_run "$log"
}

# Notes what a run cost that has ended, and prints the line of its result.
end_run() { # log
    local log=$1 label processor elapsed took
    read -r _ _ label <<<"${RUNS[$log]}"
    unset "RUNS[$log]"
    RAN=${label#"["*"] "}
    read -r STATUS processor elapsed <"$log.cost" || STATUS=1 processor=0 elapsed=0
    rm -f "$log.cost"
    COSTS+=("$processor $elapsed $RAN")
    took="$(seconds "$elapsed"), processor $(seconds "$processor")"
    case $STATUS in
    0) echo "$label  ok       $took" ;;
    "$SKIPPED") echo "$label  skipped  $(tail -n 1 "$log")" ;;
    *) echo "$label  FAILED   $took" && cat "$log" ;;
    esac
}

# Runs a command with its output in a log, which is shown only when the command fails. STATUS is its
# exit status.
run_logged() { # label, log, command...
    begin_run "$@"
    await_run
}

# Ends what runs, when the script is interrupted.
kill_runs() {
    local run
    for run in "${RUNS[@]}"; do
        kill -- "-${run%% *}" 2>/dev/null || true
    done
}
trap kill_runs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Prints what cost how much, the dearest first.
print_costs() {
    printf '%s\n' "${COSTS[@]}" | sort -k 1,1nr -k 3 | awk '
        NR == 1 { printf "%10s %10s\n", "processor", "wall" }
        { printf "%8.1f s %8.1f s  ", $1 / 10, $2 / 10; print substr($0, index($0, $3)) }'
}
