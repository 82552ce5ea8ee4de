# The libraries for other projects: `cmake --install BUILD --prefix PREFIX` installs headers, archives, a package for
# find_package(Armillary) and files for pkg-config (docs/cpp.md). The program is the component `program`, all else `cpp`.
#
# A component of find_package is a target: Armillary::plan is everything without libtorch, Armillary::armillary everything
# with it; mpi, nccl and c10d are there where they were built.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
include(armillary_public_headers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Armillary)
set(armillary_components plan)
add_custom_target(cpp)  # everything that the component cpp installs

# armillary_component(<name> <header>... LIBS <target>...): a component, with its own file of exported targets.
function(armillary_component name)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  foreach(header ${arg_UNPARSED_ARGUMENTS})
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${CMAKE_SOURCE_DIR}/armillary/${header} COMPONENT cpp
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/armillary/${folder})
  endforeach()
  add_library(armillary_component_${name} INTERFACE)
  set_target_properties(armillary_component_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(armillary_component_${name} INTERFACE ${arg_LIBS})
  add_dependencies(cpp ${arg_LIBS})
  install(TARGETS ${arg_LIBS} armillary_component_${name} EXPORT Armillary_${name}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT Armillary_${name} NAMESPACE Armillary:: DESTINATION ${package_folder} COMPONENT cpp)
  list(APPEND armillary_components ${name})
  list(REMOVE_DUPLICATES armillary_components)
  set(armillary_components ${armillary_components} PARENT_SCOPE)
endfunction()

# In the order of the linker, as pkg-config names them: a library stands before those that it uses.
set(plan_libs report recorder proof tune corpus tokenizer io comm cost sim tomlplusplus plan core)
set(torch_libs serve train model attention runtime kernel kernel_cpu torch_fmt)
list(TRANSFORM plan_libs PREPEND armillary_)
list(TRANSFORM torch_libs PREPEND armillary_)

armillary_component(plan ${armillary_plan_headers} LIBS ${plan_libs})
if(ARMILLARY_TORCH)
  armillary_component(armillary ${armillary_torch_headers} LIBS ${torch_libs})
  target_link_libraries(armillary_component_armillary INTERFACE armillary_component_plan)
  armillary_component(c10d ${armillary_c10d_headers} LIBS armillary_c10d)
endif()
if(MPI_CXX_FOUND)
  armillary_component(mpi ${armillary_mpi_headers} LIBS armillary_mpi)
endif()
if(ARMILLARY_NCCL_FOUND)
  armillary_component(nccl ${armillary_nccl_headers} LIBS armillary_nccl armillary_nccl_library)
endif()

string(REGEX MATCH "^[0-9]+" armillary_fmt ${fmt_VERSION})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ArmillaryConfig.cmake.in
  ${CMAKE_BINARY_DIR}/package/ArmillaryConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/ArmillaryConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/ArmillaryConfig.cmake ${CMAKE_BINARY_DIR}/package/ArmillaryConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/ArmillaryLibtorch.cmake DESTINATION ${package_folder} COMPONENT cpp)

# armillary_pkg_config(<name> <library>...): its paths are seen from its own folder, so a prefix can be moved.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_from_pc ${prefix_from_pc})
function(armillary_pkg_config name)
  list(TRANSFORM ARGN PREPEND -l)
  list(JOIN ARGN " " libs)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/package/${name}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/package/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)
endfunction()
armillary_pkg_config(armillary-plan ${plan_libs})
if(ARMILLARY_TORCH)
  file(GLOB gomp ${ARMILLARY_TORCH_ROOT}/lib/libgomp*.so.1)
  if(gomp)
    get_filename_component(gomp ${gomp} NAME)
    set(gomp "-l:${gomp}")
  else()
    set(gomp -fopenmp)
  endif()
  armillary_pkg_config(armillary ${torch_libs})
endif()

# Libtorch is named, for INSTALL_RPATH_USE_LINK_PATH leaves out folders inside the source tree, such as its .venv.
foreach(program armillary armillary-torch armillary-bench)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    if(NOT program STREQUAL "armillary")
      set_target_properties(${program} PROPERTIES INSTALL_RPATH ${ARMILLARY_TORCH_ROOT}/lib)
    endif()
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  endif()
endforeach()
