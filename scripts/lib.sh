# shellcheck shell=bash
# Shared by the scripts: messages with elapsed time, on stderr.
start_seconds=${TRELLIS_START_SECONDS:-$(date +%s)}
export TRELLIS_START_SECONDS=$start_seconds

say() {
  local t=$(( $(date +%s) - start_seconds ))
  printf '[%02d:%02d] %s\n' $((t / 60)) $((t % 60)) "$*" >&2
}

# fail WHAT WHAT-TO-DO
fail() {
  printf 'error: %s\n  %s\n' "$1" "$2" >&2
  exit 2
}

build() { # build PRESET [TARGET…]; TRELLIS_WERROR=ON: warnings are errors
  local preset=$1; shift
  say "configuring ($preset)"
  mkdir -p "build/$preset"
  local options=(${TRELLIS_WERROR:+"-DTRELLIS_WERROR=$TRELLIS_WERROR"})
  cmake --preset "$preset" "${options[@]}" >"build/$preset/configure.log" 2>&1 || {
    cat "build/$preset/configure.log" >&2
    fail "CMake could not configure" "see the lines above"
  }
  say "building ($preset): $(nproc) jobs"
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  cmake --build "build/$preset" "${targets[@]}" >&2
}
