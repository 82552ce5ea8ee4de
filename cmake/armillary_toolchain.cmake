# Compiler and linker settings for every target of ours.
#
# Nothing here names the instruction set of the building machine (no -march=native): kernels are chosen
# at run time.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# A tenth of the compiler's time less than -O3, which the files with loops over numbers ask for themselves.
# Flags that were given by hand are kept.
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ would collect garbage a dozen times in a unit that includes torch: another tenth, for at most 1 GB a compiler.
  add_compile_options("SHELL:--param ggc-min-heapsize=1000000")
endif()

# Objects of one build are found for another (release, plan, the wheel, another checkout): paths are relative, also in
# debug information, and what is warned of does not change an object. CCACHE_DEPEND: the headers are those that the
# compiler names, so that no unit is preprocessed twice.
find_program(ARMILLARY_CCACHE ccache)
if(ARMILLARY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(armillary_ccache_settings CCACHE_IGNOREOPTIONS=-Werror CCACHE_DEPEND=1 CCACHE_NOHASHDIR=1)
  if(NOT DEFINED ENV{CCACHE_BASEDIR})
    list(APPEND armillary_ccache_settings CCACHE_BASEDIR=${CMAKE_SOURCE_DIR})
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env ${armillary_ccache_settings} ${ARMILLARY_CCACHE})
endif()

find_program(ARMILLARY_MOLD mold)
if(ARMILLARY_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(ARMILLARY_SANITIZE STREQUAL "address")
  set(armillary_sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
    -fno-sanitize=null,object-size)  # AddressSanitizer ends there too, and they are a quarter of the compiler's time
elseif(ARMILLARY_SANITIZE STREQUAL "thread")
  # -Wno-tsan: it cannot follow a fence; there is one in libtorch's reference counts, none of ours.
  set(armillary_sanitizer_flags -fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
elseif(NOT ARMILLARY_SANITIZE STREQUAL "")
  message(FATAL_ERROR "ARMILLARY_SANITIZE is '${ARMILLARY_SANITIZE}'; address, thread or nothing is required")
endif()
add_compile_options(${armillary_sanitizer_flags})
add_link_options(${armillary_sanitizer_flags})

# Fields left out of a designated initializer have their default. g++'s guesses about sizes are wrong after it has inlined
# its own library (its bugs 105329, 105651; torch's headers with g++ 13), and their names are unknown to clang. Presets
# make errors of warnings; who builds a wheel may have a compiler that warns of more.
set(armillary_warnings -Wall -Wextra -Wno-missing-field-initializers -Wno-restrict -Wno-array-bounds
    -Wno-stringop-overflow -Wno-unknown-warning-option)
