# lib.sh - what the start scripts share: saying things, failing with a sentence, installing packages.
# Sourced by bash scripts that run in the repository's root with `set -euo pipefail`.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }

# Ends the script with a sentence that says what to do.
fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Runs a command as root: directly, or with sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root, and there is no sudo: run as root: $*"
    fi
}

# The packages among the arguments that are not installed, one a line.
packages_missing() {
    local name
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)" = installed ] ||
            printf '%s\n' "$name"
    done
}

# Installs what is missing of the packages, after saying so. Nothing is done, and root is not
# needed, when all are there.
packages_install() {
    local missing
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
        fail "only Debian and Ubuntu are known here; install the equivalents of these packages" \
            "and build by hand (meson setup build && ninja -C build): $*"
    missing=$(packages_missing "$@" | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    say "installing ${missing}(apt-get, as root)"
    as_root apt-get -q update >&2 ||
        fail "apt-get update failed: is the network there? It must reach your Debian mirror"
    # shellcheck disable=SC2086 # one word per package
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
        $missing >&2 ||
        fail "apt-get could not install $missing(the lines above say why); Debian 12 and Ubuntu" \
            "24.04 have them all in their main or universe section"
}

# configure FOLDER [meson options]: sets the folder up, or again with these options.
configure() {
    local folder=$1
    shift
    [ ! -f "$folder/build.ninja" ] || set -- --reconfigure "$@"
    mkdir -p "$folder"
    meson setup "$folder" "$@" >"$folder/setup.log" || {
        tail -n 3 "$folder/setup.log" >&2
        fail "meson setup $folder failed; its log is $folder/meson-logs/meson-log.txt"
    }
}

# compile FOLDER [targets]: ninja's own counter on a terminal; elsewhere a line, and at the end the
# errors.
compile() {
    local folder=$1
    say "building in $folder"
    if [ -t 2 ]; then
        ninja -C "$@" >&2 || fail "the build in $folder failed (the lines above say where)"
        return
    fi
    ninja -C "$@" >"$folder/ninja.log" || {
        grep -vE '^\[[0-9]+/[0-9]+\]' "$folder/ninja.log" | tail -n 60 >&2
        fail "the build in $folder failed (the lines above say where)"
    }
}
