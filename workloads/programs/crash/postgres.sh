#!/bin/sh
# PostgreSQL 18 with io_method=io_uring, for `usring crash`: postgres.sh setup|run|check
# PROGRAMS: the folder of its programs. Runs as an ordinary user. Only the recorded command is served
# by usring, so the other two use no rings.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$USRING_CRASH_STATE/data
export LC_ALL=C

ask() {
    "$PROGRAMS/psql" --no-psqlrc --quiet --no-align --tuples-only --host="$work" --username=tester \
        --dbname=postgres "$@"
}

start() {
    "$PROGRAMS/postgres" -D "$data" -c io_method="$method" -c listen_addresses= -c shared_buffers=16MB \
        -c unix_socket_directories="$work" -c max_connections=10 -c autovacuum=off -c fsync="${FSYNC:-on}" \
        >"$work/log" 2>&1 &
    server=$!
    tries=0
    until ask -c 'select 1' >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -gt 1200 ] || ! kill -0 $server 2>/dev/null; then
            echo "the server does not start: $(grep -m 1 -E 'FATAL|PANIC' "$work/log")"
            exit 1
        fi
        sleep 0.05
    done
}

case $1 in
setup)
    "$PROGRAMS/initdb" -D "$data" -U tester -A trust --wal-segsize=1 --no-sync >"$work/log" 2>&1 || exit 1
    method=sync
    start
    ask -c 'create table stored (number int primary key, text text)' -c checkpoint
    kill -INT $server
    ;;
run)
    method=io_uring
    start
    for number in 1 2 3 4 5 6; do
        echo "insert into stored values ($number, repeat('x', 2000)); select $number;"
        [ $number = 3 ] && echo 'checkpoint;'
    done | ask
    kill -INT $server
    ;;
check)
    # PostgreSQL does not start if a power loss has emptied this file, and says so. An administrator
    # then removes it.
    rm -f "$data/postmaster.pid"
    method=sync
    start
    last=$(tail -n 1 "$USRING_CRASH_OUTPUT")
    last=${last:-0}
    rows=$(ask -c "select count(*) from stored where number <= $last and length(text) = 2000" 2>&1)
    kill -QUIT $server
    wait $server 2>/dev/null
    if [ "$rows" != "$last" ]; then
        echo "$rows rows of $last"
        exit 1
    fi
    exit 0
    ;;
esac
wait $server
exit 0
