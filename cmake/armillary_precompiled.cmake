# Headers of others that many sources include, compiled once: half of the build's time otherwise.
#
#   armillary_precompiled(aten INCLUDES <regex> LIBS armillary_torch HEADERS <ATen/ATen.h>)
#   armillary_use_precompiled(<target> aten <source>...)   for those of its sources that match the regex
#
# Sources still include what they use: without precompiled headers everything builds the same.

function(armillary_precompiled name)
  cmake_parse_arguments(arg "" "INCLUDES" "LIBS;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}_headers.cpp CONTENT "")
  add_library(armillary_${name}_headers OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${name}_headers.cpp)
  target_compile_options(armillary_${name}_headers PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(armillary_${name}_headers PRIVATE ${arg_LIBS})
  target_precompile_headers(armillary_${name}_headers PRIVATE ${arg_HEADERS})
  set_target_properties(armillary_${name}_headers PROPERTIES ARMILLARY_INCLUDES "${arg_INCLUDES}")
endfunction()

function(armillary_use_precompiled target name)
  if(NOT TARGET armillary_${name}_headers)
    return()
  endif()
  get_target_property(wanted armillary_${name}_headers ARMILLARY_INCLUDES)
  set(any OFF)
  foreach(source ${ARGN})
    file(STRINGS ${source} includes REGEX "${wanted}")
    if(includes)
      set(any ON)
    else()
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(any)
    target_precompile_headers(${target} REUSE_FROM armillary_${name}_headers)
  endif()
endfunction()
