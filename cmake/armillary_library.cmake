# The functions that every folder's CMakeLists.txt calls.
#
#   armillary_library(plan USES core)                 armillary_plan, armillary_plan_test
#   armillary_library(kernel USES core plan TORCH)    the same, with libtorch
#   armillary_cross_test(equivalence USES train)      armillary_equivalence_test, of tests/equivalence/
#
# Sources are found by name: x.cpp belongs to the library, x_test.cpp to the folder's one test program,
# testing/x.cpp to armillary_<folder>_testing, which every test program may use.

# The libraries in which tests under sanitizers spend their time. The others are compiled without optimisation there,
# in two thirds of the time.
set(armillary_sanitized core plan comm mpi nccl proof kernel runtime attention)

# armillary_library(<folder> [TORCH] [COLD] [USES <folder>...] [LIBS <target>...] [WITHOUT <file>...]
#                   [EXCEPT <sub-folder>...] [SHARDS <n>]):
# target armillary_<folder> of the current folder's sources, and armillary_<folder>_test of its tests.
# EXCEPT names sub-folders that are targets of their own.
# COLD: nothing in it runs often enough to be worth the optimiser's time, a third of the compiler's.
function(armillary_library name)
  cmake_parse_arguments(arg "TORCH;COLD" "SHARDS" "USES;LIBS;WITHOUT;EXCEPT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  foreach(folder ${arg_EXCEPT})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
  endforeach()
  set(testing ${sources})
  list(FILTER testing INCLUDE REGEX "/testing/")
  list(FILTER sources EXCLUDE REGEX "/testing/")
  foreach(file ${arg_WITHOUT})
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
  list(TRANSFORM arg_USES PREPEND armillary_)
  if(arg_TORCH)
    list(APPEND arg_LIBS Armillary::libtorch)
  endif()

  set(target armillary_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(${target} PRIVATE ${armillary_warnings} $<$<AND:$<BOOL:${arg_COLD}>,$<CONFIG:Release>>:-Og>)
    if(ARMILLARY_SANITIZE AND NOT name IN_LIST armillary_sanitized)
      target_compile_options(${target} PRIVATE -O0)
    endif()
    # The Python package is one shared module made of these libraries.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ${ARMILLARY_POSITION_INDEPENDENT})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  target_link_libraries(${target} ${scope} ${arg_USES} ${arg_LIBS} Threads::Threads)

  if(testing)  # what tests share, of any folder
    add_library(${target}_testing STATIC EXCLUDE_FROM_ALL ${testing})
    target_compile_options(${target}_testing PRIVATE ${armillary_warnings})
    target_link_libraries(${target}_testing PUBLIC ${target})
  endif()
  # The testing targets of this folder and of those that it uses, for armillary_test().
  set(all_testing)
  foreach(used ${arg_USES})
    get_property(of_used GLOBAL PROPERTY ${used}_testing_closure)
    list(APPEND all_testing ${of_used})
  endforeach()
  if(testing)
    list(APPEND all_testing ${target}_testing)
  endif()
  list(REMOVE_DUPLICATES all_testing)
  set_property(GLOBAL PROPERTY ${target}_testing_closure ${all_testing})

  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  armillary_test(${name} SOURCES ${tests} LIBS ${target} SHARDS ${arg_SHARDS})
endfunction()

# armillary_test(<name> SOURCES <file>... LIBS <target>... [SHARDS <n>]): test program armillary_<name>_test,
# run by ctest under the label <name>. One ctest test is one process: starting libtorch costs more
# than most cases. SHARDS splits the cases over n processes. Threads of OpenMP that have no work sleep: by default
# they spin, for a third of the time of tests with two threads.
function(armillary_test name)
  cmake_parse_arguments(arg "" "SHARDS" "SOURCES;LIBS" ${ARGN})
  add_custom_target(test_${name})  # builds the tests; without any, there is nothing to build
  if(NOT arg_SOURCES OR NOT ARMILLARY_TESTS)
    return()
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  set(target armillary_${name}_test)
  add_executable(${target} EXCLUDE_FROM_ALL ${arg_SOURCES})
  add_dependencies(test_${name} ${target})
  add_dependencies(tests ${target})
  # Tests are compiled far more often than run: -Og takes up to a third less time than -O1; with sanitizers, -O0 half of -O1.
  # UndefinedBehaviorSanitizer looks at what is tested, not at the tests: a third of their compile time.
  target_compile_options(${target} PRIVATE ${armillary_warnings}
    $<$<CONFIG:Release>:-Og> $<$<CONFIG:RelWithDebInfo>:-O0>
    $<$<STREQUAL:${ARMILLARY_SANITIZE},address>:-fno-sanitize=undefined>)
  set(testing)
  foreach(lib ${arg_LIBS})
    get_property(of_lib GLOBAL PROPERTY ${lib}_testing_closure)
    list(APPEND testing ${of_lib})
  endforeach()
  target_link_libraries(${target} PRIVATE ${testing} ${arg_LIBS} GTest::gtest_main GTest::gmock rapidcheck)
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      set(test ${name}_${shard})
    endif()
    set(output GTEST_OUTPUT=json:${CMAKE_BINARY_DIR}/test-results/${test}.json)
    add_test(NAME ${test} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES
      LABELS ${name} COST ${arg_SHARDS}
      ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive;ARMILLARY_CACHE=/dev/null/none;GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard};${output}")
  endforeach()
endfunction()

# armillary_cross_test(<name> USES <folder>... [ALSO <file>...] [EXCEPT <sub-folder>...] [SHARDS <n>] [PROGRAM]): the test
# program of tests/<name>/, for what crosses folders, with the sources ALSO of other folders of tests/. With PROGRAM it may start the program armillary, at ARMILLARY_PROGRAM, and read files below
# ARMILLARY_SOURCE_DIR.
function(armillary_cross_test name)
  cmake_parse_arguments(arg "PROGRAM" "SHARDS" "USES;ALSO;EXCEPT" ${ARGN})
  list(TRANSFORM arg_USES PREPEND armillary_)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  foreach(folder ${arg_EXCEPT})
    list(FILTER tests EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${name}/${folder}/")
  endforeach()
  list(APPEND tests ${arg_ALSO})
  armillary_test(${name} SOURCES ${tests} LIBS ${arg_USES} SHARDS ${arg_SHARDS})
  if(arg_PROGRAM AND TARGET armillary_${name}_test AND TARGET armillary)
    target_compile_definitions(armillary_${name}_test PRIVATE
      ARMILLARY_PROGRAM="$<TARGET_FILE:armillary>" ARMILLARY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_dependencies(armillary_${name}_test programs)
  endif()
endfunction()

# armillary_mpi_tests(<name> <n>...): the ctest tests <name>_mpi_<n>, which run the test program <name> with --mpi as
# n processes. Without MPI, one process says so. With a sanitizer there are none: MPI libraries leak.
function(armillary_mpi_tests name)
  if(NOT TARGET armillary_${name}_test OR ARMILLARY_SANITIZE)
    return()
  endif()
  foreach(processes ${ARGN})
    set(test ${name}_mpi_${processes})
    set(launcher)
    if(MPI_CXX_FOUND)
      # `timeout` ends mpirun in a way that lets it end its processes; ctest would not.
      set(launcher timeout -k 10 600 ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${processes})
    endif()
    add_test(NAME ${test} COMMAND ${launcher} $<TARGET_FILE:armillary_${name}_test> --mpi --gtest_brief=1)
    # The variables are of Open MPI: more processes than cores, and root, as in a container.
    set_tests_properties(${test} PROPERTIES LABELS ${name} PROCESSORS 2 TIMEOUT 660
      SKIP_REGULAR_EXPRESSION "\\[SKIP\\] no MPI"
      ENVIRONMENT "OMP_NUM_THREADS=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
  endforeach()
endfunction()

# armillary_c10d_tests(<name> <n>...): the ctest tests <name>_<n>, which run the test program <name> with --processes=<n>.
# It starts itself as n processes.
function(armillary_c10d_tests name)
  foreach(processes ${ARGN})
    set(test ${name}_${processes})
    add_test(NAME ${test} COMMAND armillary_${name}_test --processes=${processes} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES LABELS ${name} PROCESSORS 2 TIMEOUT 660 ENVIRONMENT "OMP_NUM_THREADS=1")
  endforeach()
endfunction()

# armillary_program(<name> SOURCES <file>... LIBS <target>...): a program in bin/. Without its sources,
# nothing.
function(armillary_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  foreach(source ${arg_SOURCES})
    if(NOT EXISTS ${source} AND NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${source})
      return()
    endif()
  endforeach()
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${armillary_warnings} $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
endfunction()
