# The imported target Armillary::libtorch, for builds of this project and, installed, for those of its users.
#
# TorchConfig.cmake is not used: with a CUDA wheel it wants a whole CUDA toolkit (nvcc) to be installed,
# although a C++ user of the wheel needs only its headers and shared libraries, which is what is named here.

# armillary_add_libtorch(<folder of the package> <its std::string ABI> <target of its fmt>)
function(armillary_add_libtorch root cxx11_abi fmt)
  add_library(Armillary::libtorch INTERFACE IMPORTED)
  target_include_directories(Armillary::libtorch INTERFACE ${root}/include ${root}/include/torch/csrc/api/include)
  target_compile_definitions(Armillary::libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=${cxx11_abi})
  set(lib ${root}/lib)
  # The standard library comes first: libraries of torch export parts of an older one (std::filesystem), half of whose
  # functions are missing in some wheels, and a program would take them.
  target_link_libraries(Armillary::libtorch INTERFACE
    ${fmt} stdc++ ${lib}/libtorch.so ${lib}/libtorch_cpu.so ${lib}/libc10.so)
  # Its threads: at::parallel_for is a header, and without OpenMP runs everything on the calling thread. A wheel brings its
  # own libgomp, which must be the only one in the process.
  target_compile_options(Armillary::libtorch INTERFACE -fopenmp)
  file(GLOB gomp ${lib}/libgomp*.so.1)
  target_link_libraries(Armillary::libtorch INTERFACE $<IF:$<BOOL:${gomp}>,${gomp},-fopenmp>)
  if(EXISTS ${lib}/libtorch_cuda.so)
    # Kernels register themselves when the library is loaded, so keep it although no symbol of it is used.
    target_link_libraries(Armillary::libtorch INTERFACE
      -Wl,--no-as-needed ${lib}/libtorch_cuda.so ${lib}/libc10_cuda.so -Wl,--as-needed)
    target_link_options(Armillary::libtorch INTERFACE -Wl,--allow-shlib-undefined)
  endif()
endfunction()
