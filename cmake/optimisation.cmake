# How the compiler optimises: sets OPTIMISATION_<build> of every one of BUILDS, and options of sources. A wheel has all builds, and is to
# stay below 4 MB (tests/support/compressed_wheel.py); three quarters of it are the kernels.
#
# Most kernels are written in vectors and registers, so that -O3 makes them larger by a quarter, and no faster. Those that have loops
# for the compiler to turn into vectors have it. The baseline is for x86 without AVX2, and on ARM for none: its code is as
# small as it can be, unless there is no other.
foreach(build ${BUILDS})
  set(OPTIMISATION_${build} ${OPTIMISATION})
endforeach()

# gold keeps one of several functions with the same instructions, if there is gold.
set(CMAKE_REQUIRED_LINK_OPTIONS -fuse-ld=gold -Wl,--icf=safe)
check_cxx_source_compiles("int main() {}" HAS_GOLD)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
set(FOLDING "")
if(HAS_GOLD AND NOT OPTIMISATION)
  set(FOLDING -fuse-ld=gold -Wl,--icf=safe)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT OPTIMISATION)
  # -O2 inlines less: calls in kernels, and functions of the standard library that are not inlined, of which the linker would keep one
  # build's for all (tests/core/test_isa_objects.py). These are the parameters of -O3; the samplers, whose code is large, have those of
  # -O2.
  set(inlines_much --param=max-inline-insns-single=200 --param=max-inline-insns-auto=30 --param=early-inlining-insns=14
    --param=inline-min-speedup=15)
  set(inlines_little --param=max-inline-insns-single=70 --param=max-inline-insns-auto=15 --param=early-inlining-insns=6
    --param=inline-min-speedup=30)
  foreach(build ${BUILDS})
    set(OPTIMISATION_${build} -O2 ${inlines_much})
  endforeach()
  set(small "")
  list(LENGTH BUILDS count)
  if(count GREATER 1)
    set(OPTIMISATION_baseline -Os)
    set(small kernels_baseline)
  endif()
  # Options of sources of a folder: of most builds, and of the baseline. A precompiled header would bring its own.
  function(optimise folder options of_small)
    set(sources ${SOURCES_OF_vectors} ${SOURCES_OF_bytes} ${SOURCES_OF_tiles} ${SOURCES_OF_lists})
    list(FILTER sources INCLUDE REGEX "^csrc/${folder}")
    set_source_files_properties(${sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
      COMPILE_OPTIONS "$<IF:$<STREQUAL:$<TARGET_PROPERTY:NAME>,${small}>,${of_small},${options}>")
  endfunction()
  optimise(elementwise/ "-O3" "-Os")
  optimise(mixture_of_experts/ "-O3" "-Os")
  optimise(recurrent/ "-O3" "-O2")
  optimise(sampling/ "-O3;${inlines_little}" "-Os")
  optimise(linear/panel_tile.cpp "-O2" "-O2")
endif()
