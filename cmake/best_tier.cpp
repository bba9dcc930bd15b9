// Prints the best tier of the machine that compiles: cmake/tiers.cmake runs it.
#include <cstdio>

#include "core/isa.cpp"  // not linked with anything else

int main() { std::puts(decodestep::tier_name()); }
