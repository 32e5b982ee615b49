# Sourced by ./demo and ./check: makes sure that there is a Rust toolchain that
# can build usring, and a C linker, before cargo is asked for anything.

PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"
needed_minor=90

stop() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

command -v cargo >/dev/null || stop "cargo is missing; install Rust 1.$needed_minor or newer from https://rustup.rs"

cargo_minor=$(cargo --version | sed -E 's/^cargo 1\.([0-9]+).*/\1/')
[ "$cargo_minor" -ge "$needed_minor" ] 2>/dev/null ||
    stop "$(cargo --version) is too old; install Rust 1.$needed_minor or newer from https://rustup.rs"

if ! command -v cc >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev
    else
        stop "a C linker is missing; as root: apt-get install gcc libc6-dev"
    fi
fi
