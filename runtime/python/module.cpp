// heed._heed: what the Python package needs of the C API.
#include "runtime/python/bindings.h"
#include "runtime/python/errors.h"

NB_MODULE(_heed, module) {
    heed::python::translate_errors();
    module.attr("__version__") = heed_version();
    heed::python::bind_attention(module);
    heed::python::bind_gradients(module);
    heed::python::bind_kernels(module);
    heed::python::bind_kv_cache(module);
    heed::python::bind_layer(module);
    heed::python::bind_layer_cache(module);
    heed::python::bind_ops(module);
    heed::python::bind_sdpa(module);
}
