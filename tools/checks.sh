# ./dev test and ./dev lint. Sourced by ./dev; not a program.

# Folders tested under each sanitizer: where memory and threads are handled by us. train and cli are tested in release
# only: libtorch, which does their work, is not instrumented, and its headers are slow to compile.
readonly ASAN_LABELS="core plan comm proof kernel runtime attention conformance"
readonly TSAN_LABELS="comm proof runtime attention conformance equivalence"

# No suppressions: libtorch is not instrumented, but it neither leaks nor looks racy from here. Not to be added:
# TSAN_OPTIONS=ignore_noninstrumented_modules=1, which on Linux takes our own modules for uninstrumented too and
# hides races through memcpy.
export_sanitizer_options() {
  export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
  export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
}

# run_ctest PRESET [CTEST ARGUMENT...]; its results are counted by test_summary.py at the end.
run_ctest() {
  local folder runner=()
  folder=$(folder_of "$1")
  # ThreadSanitizer of g++ 12 does not start where the kernel spreads addresses widely.
  if [ "$1" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    runner=(setarch "$(uname -m)" -R)
  fi
  shift
  rm -rf "$folder/test-results"
  mkdir -p "$folder/test-results"
  "${runner[@]}" ctest --test-dir "$folder" -j "$JOBS" --output-on-failure --no-tests=error \
    --timeout "$TEST_TIMEOUT_S" --output-junit test-results/ctest.xml "$@" || failed=1
}

# build_behind PRESET AFTER LABEL...: builds the tests of the labels in the background, at low priority: tests that run
# meanwhile often wait for each other and leave cores idle. Begins when the process AFTER has ended. Sets `builder`.
builders=()
build_behind() {
  local preset=$1 after=$2 folder
  shift 2
  folder=$(folder_of "$preset")
  configure "$preset"
  say "building $* ($preset) beside the tests"
  set -m  # a process group of its own, so that stop_builders ends its compilers too
  (
    [ -z "$after" ] || tail --pid="$after" -f /dev/null
    exec nice -n 15 cmake --build "$folder" -j "$JOBS" --target "${@/#/test_}"
  ) >"$folder/build.log" 2>&1 &
  set +m
  builder=$!
  builders+=("$builder")
}

stop_builders() {
  local builder
  for builder in "${builders[@]}"; do kill -- "-$builder" 2>/dev/null || true; done
}

test_sanitized() {  # PRESET BUILDER LABEL...
  local preset=$1 builder=$2 label
  shift 2
  if ! wait "$builder"; then
    cat "$(folder_of "$preset")/build.log"
    say "the preset $preset does not build"
    failed=1
    return 0
  fi
  say "testing $* ($preset)"
  label=$(IFS='|' && echo "$*")
  run_ctest "$preset" -L "^($label)\$"
}

# The plan preset is what a laptop without torch builds.
test_plan_preset() {
  build_targets plan armillary
  if readelf -d build-plan/bin/armillary | grep -E 'torch|c10'; then
    say "the program of the plan preset links torch"
    failed=1
  fi
  build-plan/bin/armillary --help >/dev/null || failed=1
}

test_python() {
  compgen -G 'tests/*_test.py' >/dev/null || compgen -G 'tests/*/*_test.py' >/dev/null || return 0
  say "testing Python"
  mkdir -p build/test-results
  PYTHONPATH=build/python .venv/bin/python -m pytest -q -o python_files='*_test.py' -p no:cacheprovider tests python/tests \
    --junitxml build/test-results/pytest.xml || failed=1
}

command_test() {
  local quick= only=() failed=0 builder= asan_builder= tsan_builder=
  local TEST_TIMEOUT_S=900
  while [ $# -gt 0 ]; do
    case $1 in
      --quick) quick=1 ;;
      --all)
        export ARMILLARY_TEST_ALL=1
        TEST_TIMEOUT_S=7200
        ;;
      -L)
        [ $# -ge 2 ] || die "test: -L needs a label"
        only=("$2")
        shift
        ;;
      *) die "test: $1; --quick, --all or -L LABEL is required" ;;
    esac
    shift
  done
  # Without apt-get, MPI is optional: its tests say that they are skipped.
  if command -v apt-get >/dev/null; then setup build test mpi nccl; else setup build test nccl; fi
  rm -rf build*/test-results
  if [ ${#only[@]} -gt 0 ]; then
    build_targets release "test_${only[0]}"
    run_ctest release -L "^${only[0]}\$"
  else
    build_targets release all tests bench
    if [ -z "$quick" ]; then
      trap stop_builders EXIT
      # shellcheck disable=SC2086  # words are wanted
      build_behind asan "" $ASAN_LABELS
      asan_builder=$builder
      # shellcheck disable=SC2086
      build_behind tsan "$asan_builder" $TSAN_LABELS
      tsan_builder=$builder
    fi
    say "testing everything (release)"
    run_ctest release
    test_python
    if [ -z "$quick" ]; then
      test_plan_preset
      export_sanitizer_options
      # shellcheck disable=SC2086
      test_sanitized asan "$asan_builder" $ASAN_LABELS
      # shellcheck disable=SC2086
      test_sanitized tsan "$tsan_builder" $TSAN_LABELS
    fi
  fi
  python3 tools/test_summary.py build*/test-results || failed=1
  return $failed
}

lint_sources() {
  find armillary cli python tests bench examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
}

command_lint() {
  local failed=0 fix= format
  case ${1:-} in
    '') ;;
    --fix) fix=1 ;;
    *) die "lint: $1; --fix or nothing is required" ;;
  esac
  setup build test lint
  format=$(command -v clang-format-14 || command -v clang-format)
  if [ -n "$fix" ]; then
    lint_sources | xargs -r "$format" -i
    .venv/bin/ruff format --quiet .
    .venv/bin/ruff check --quiet --fix . || true
  fi
  say "lint: format"
  lint_sources | xargs -r "$format" --dry-run -Werror || failed=1
  say "lint: includes, sizes and comments"
  python3 tools/check_includes.py --self-test || failed=1
  python3 tools/check_includes.py || failed=1
  python3 tools/check_standard_includes.py --self-test || failed=1
  python3 tools/check_standard_includes.py || failed=1
  python3 tools/check_sizes.py || failed=1
  python3 tools/check_comments.py --self-test || failed=1
  python3 tools/check_comments.py || failed=1
  say "lint: Python"
  .venv/bin/ruff format --quiet --check . || failed=1
  .venv/bin/ruff check --quiet . || failed=1
  .venv/bin/mypy --no-error-summary --python-executable "$(torch_python)" || failed=1
  configure lint
  say "lint: clang-tidy"
  python3 tools/lint_tidy.py build-lint || failed=1
  if [ $failed -eq 0 ]; then say "lint: clean"; else say "lint: FAILED"; fi
  return $failed
}
