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

find_program(ARMILLARY_CCACHE ccache)
if(ARMILLARY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ARMILLARY_CCACHE})
  if(NOT DEFINED ENV{CCACHE_BASEDIR})  # relative paths: objects of one build are found for another (release, plan)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${ARMILLARY_CCACHE})
  endif()
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

# Fields left out of a designated initializer have their default; g++ 12's -Wrestrict is wrong about
# std::string + (its bug 105651) and unknown to clang.
set(armillary_warnings -Wall -Wextra -Werror
    -Wno-missing-field-initializers -Wno-restrict -Wno-unknown-warning-option)
