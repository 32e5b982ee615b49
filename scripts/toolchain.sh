# Sourced by ./demo and ./check: makes sure that there is a Rust toolchain that
# can build usring, and a C linker, before cargo is asked for anything.

PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"
# The oldest release that builds usring: 1.$needed_minor.
needed_minor=90
# The release with which ./check runs: a later one may have new lints.
pinned=1.95.0

stop() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

command -v cargo >/dev/null || stop "cargo is missing; install Rust 1.$needed_minor or newer from https://rustup.rs"

cargo_minor=$(cargo --version | sed -E 's/^cargo 1\.([0-9]+).*/\1/')
[ "$cargo_minor" -ge "$needed_minor" ] 2>/dev/null ||
    stop "$(cargo --version) is too old; install Rust 1.$needed_minor or newer from https://rustup.rs"

# Makes cargo use the pinned release, with the help of rustup if another release is the usual one.
# Where the pinned release cannot be had, ./check goes on with the usual one.
use_pinned() {
    has_pinned && return
    if command -v rustup >/dev/null && {
        rustup toolchain list | grep -q "^$pinned-" ||
            rustup toolchain install "$pinned" --profile minimal --component clippy --component rustfmt
    }; then
        export RUSTUP_TOOLCHAIN=$pinned
    fi
    has_pinned || echo "$(rustc --version) is used instead of Rust $pinned: it may have other lints" >&2
}

has_pinned() {
    [ "$(rustc --version | cut -d ' ' -f 2)" = "$pinned" ]
}

if ! command -v cc >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev
    else
        stop "a C linker is missing; as root: apt-get install gcc libc6-dev"
    fi
fi
