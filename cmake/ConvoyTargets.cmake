# One static library per room of src/, one test executable per subject of tests/.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_library(convoy_options INTERFACE)
target_include_directories(convoy_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_compile_options(convoy_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wnull-dereference
  -Werror $<$<CXX_COMPILER_ID:Clang>:-Wno-gnu-zero-variadic-macro-arguments>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
  # GCC 12 reports false positives of these once it inlines the standard library.
  target_compile_options(convoy_options INTERFACE -Wno-null-dereference -Wno-maybe-uninitialized
    -Wno-stringop-overflow -Wno-array-bounds -Wno-restrict)
endif()
if(CONVOY_SANITIZE)
  add_compile_options(-fsanitize=${CONVOY_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${CONVOY_SANITIZE})
  target_compile_options(convoy_options INTERFACE -Wno-maybe-uninitialized -Wno-null-dereference
    -Wno-stringop-overflow -Wno-array-bounds -Wno-restrict)
endif()

# convoy_library(NAME SOURCES … DEPS …): the static library convoy_NAME, also convoy::NAME.
function(convoy_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(convoy_${name} STATIC ${ARG_SOURCES})
  add_library(convoy::${name} ALIAS convoy_${name})
  target_link_libraries(convoy_${name} PUBLIC convoy_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# convoy_test(NAME SOURCES … DEPS … [TIMEOUT seconds]): a GoogleTest executable registered with CTest.
function(convoy_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE convoy_options ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE CONVOY_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/golden"
    CONVOY_SOURCE_DIR="${CMAKE_SOURCE_DIR}" CONVOY_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name}_test)
  # Passive: threads that wait do not take the cores from other tests.
  set(environment OMP_WAIT_POLICY=passive)
  if(CONVOY_SANITIZE MATCHES "undefined")  # which by itself only prints, also in the processes that a test starts
    list(APPEND environment UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${environment}")
endfunction()

if(CONVOY_BUILD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -g)
endif()

# convoy_isa_sources(TARGET name.isa.cpp …): compiles each file once per instruction set (avx512, avx2 and base; only base
# off x86), with CONVOY_ISA defined to that word. Such a file puts everything into namespace convoy::cpu::CONVOY_ISA and
# includes no header with inline code that other files could share (the linker might keep the copy built for AVX-512).
function(convoy_isa_sources target)
  set(isas base)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(isas base avx2 avx512)
  endif()
  set(flags_base -O3)
  set(flags_avx2 -O3 -march=x86-64-v3)
  set(flags_avx512 -O3 -march=x86-64-v4 -mprefer-vector-width=512)
  foreach(source IN LISTS ARGN)
    get_filename_component(stem "${source}" NAME_WE)
    foreach(isa IN LISTS isas)
      set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/${stem}.${isa}.cpp")
      file(CONFIGURE OUTPUT "${wrapper}" CONTENT "#define CONVOY_ISA ${isa}\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      set_source_files_properties("${wrapper}" PROPERTIES
        COMPILE_OPTIONS "${flags_${isa}};-fno-math-errno;-ffp-contract=fast;-fno-trapping-math")
      target_sources(${target} PRIVATE "${wrapper}")
    endforeach()
  endforeach()
endfunction()
