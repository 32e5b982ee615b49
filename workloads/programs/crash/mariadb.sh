#!/bin/sh
# MariaDB's InnoDB on io_uring, for `usring crash`: mariadb.sh setup|run|check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
socket=$work/socket
options="--no-defaults --datadir=$USRING_CRASH_STATE --user=$(id -un) --innodb-linux-aio=io_uring
    --innodb-use-native-aio=1 --innodb-buffer-pool-size=6M --innodb-log-file-size=4M
    --innodb-data-file-path=ibdata1:10M:autoextend --innodb-undo-tablespaces=0
    --innodb-flush-log-at-trx-commit=${FLUSH:-1}"

ask() {
    mariadb --no-defaults --user=root --socket="$socket" --batch --skip-column-names --unbuffered "$@"
}

start() {
    # shellcheck disable=SC2086
    mariadbd $options --skip-networking --socket="$socket" --pid-file="$work/pid" --log-error="$work/log" \
        >/dev/null 2>&1 &
    server=$!
    tries=0
    until ask -e 'select 1' >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ $tries -gt 1200 ] || ! kill -0 $server 2>/dev/null; then
            echo "the server does not start: $(grep -m 1 ERROR "$work/log")"
            exit 1
        fi
        sleep 0.05
    done
}

case $1 in
setup)
    # shellcheck disable=SC2086
    mariadb-install-db $options --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve \
        >"$work/log" 2>&1 || { tail -n 3 "$work/log"; exit 1; }
    start
    ask -e 'create database stored; create table stored.row (number int primary key, text varchar(3000))'
    kill $server
    ;;
run)
    start
    for number in 1 2 3 4 5 6; do
        echo "insert into stored.row values ($number, repeat('x', 2000)); select $number;"
    done | ask
    kill $server
    ;;
check)
    start
    last=$(tail -n 1 "$USRING_CRASH_OUTPUT")
    last=${last:-0}
    rows=$(ask -e "select count(*) from stored.row where number <= $last and length(text) = 2000" 2>&1)
    table=$(ask -e 'check table stored.row extended' 2>&1)
    kill -9 $server
    wait $server 2>/dev/null
    if [ "$rows" != "$last" ]; then
        echo "$rows rows of $last"
        exit 1
    fi
    case $table in
    *status*OK) exit 0 ;;
    *) echo "$table"; exit 1 ;;
    esac
    ;;
esac
wait $server
