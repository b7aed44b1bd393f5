#include "tests/support/expect.h"

int main(int argc, char **argv) { return heed_test::run_kernel_tests(argc, argv); }
