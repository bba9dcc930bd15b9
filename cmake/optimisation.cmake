# How the compiler optimises: sets OPTIMISATION_<build> of every one of BUILDS, and options of sources. A wheel has all builds, and is to
# stay below 4 MB (tests/support/compressed_wheel.py); three quarters of it are the kernels.
#
# Most kernels are written in vectors and registers, so that -O3 makes them larger by a quarter, and no faster. Those that have loops
# for the compiler to turn into vectors have it. The baseline is for processors of before 2013, and on ARM for none: its code is as
# small as it can be, unless there is no other.
foreach(build ${BUILDS})
  set(OPTIMISATION_${build} ${OPTIMISATION})
endforeach()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT OPTIMISATION)
  # -O2 inlines less: calls in kernels, and functions of the standard library that are not inlined, of which the linker would keep one
  # build's for all (tests/core/test_isa_objects.py). These are the parameters of -O3.
  set(inlining --param=max-inline-insns-single=200 --param=max-inline-insns-auto=30 --param=early-inlining-insns=14
    --param=inline-min-speedup=15)
  foreach(build ${BUILDS})
    set(OPTIMISATION_${build} -O2 ${inlining})
  endforeach()
  set(small "")
  list(LENGTH BUILDS count)
  if(count GREATER 1)
    set(OPTIMISATION_baseline -Os)
    set(small kernels_baseline)
  endif()
  set(looped ${SOURCES_OF_vectors} ${SOURCES_OF_lists})
  list(FILTER looped INCLUDE REGEX "^csrc/(elementwise|mixture_of_experts|recurrent|sampling)/")
  set_source_files_properties(${looped} PROPERTIES COMPILE_OPTIONS "$<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,${small}>>:-O3>")
endif()
