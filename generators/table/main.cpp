// heed_generate without Halide: it only lists. Heed's own build makes it while CMake configures, before there are
// kernels.
#include "generators/table/list.h"

int main(int argc, char **argv) { return heed::is_asked_for_list(argc, argv) ? heed::print_list(argc, argv) : 1; }
