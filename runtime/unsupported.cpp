// The functions that the header promises and this version has no kernels for.
#include "status.h"

namespace {

heed_status not_built(const char *function) {
    return heed::fail(HEED_UNSUPPORTED, "%s is not built yet in Heed %s", function, heed_version());
}

}  // namespace

extern "C" {

heed_status heed_layer_backward(const heed_layer *, const heed_layer_args *, const heed_layer_gradients *) {
    return not_built("heed_layer_backward");
}

}  // extern "C"
