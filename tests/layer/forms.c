/* A layer in C99: weights from a safetensors file, one call on a prompt, compared with numpy's results; forms_test.cpp
 * has the other forms and the steps after it. Usage: heed_layer_forms_c FOLDER. HEED_TEST_DEVICE=cuda in the
 * environment: on CUDA. */
#define _POSIX_C_SOURCE 200112L /* posix_memalign */
#include "tests/layer/cuda_memory.h"

#include <heed/heed.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        if ((call) != HEED_OK) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, heed_last_error());                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static heed_device device;
static cuda_memory cuda;

/* Copies of a call's tensors on the device. */
enum { most_copies = 8 };
static heed_tensor copies[most_copies];
static int num_copies;

static void move_to_device(heed_tensor *tensor) {
    if (tensor->data == NULL) return;
    const size_t bytes = (size_t)tensor->size * (tensor->dtype == HEED_U8 ? 1 : sizeof(float));
    void *const copy = cuda_allocate(&cuda, bytes);
    cuda_check(cuda.copy_to_device((uintptr_t)copy, tensor->data, bytes), "cuMemcpyHtoD");
    tensor->data = copy;
    copies[num_copies++] = *tensor;
}

static void release_copies(void) {
    while (num_copies > 0) cuda_check(cuda.release((uintptr_t)copies[--num_copies].data), "cuMemFree");
}

static heed_tensor find(const heed_weights_file *file, const char *name) {
    heed_tensor tensor;
    int64_t shape[8];
    int32_t rank;
    CHECK(heed_weights_find(file, name, &tensor, shape, &rank));
    return tensor;
}

/* The layer's workspace, y and the call, on the device. */
static void forward_on_device(const heed_layer *layer, heed_layer_args args) {
    float *const y = args.y.data;
    heed_tensor workspace = {NULL, (int64_t)args.execution.workspace_bytes, HEED_U8};
    workspace.data = args.execution.workspace;
    move_to_device(&workspace);
    args.execution.workspace = workspace.data;
    move_to_device(&args.y);
    move_to_device(&args.x);
    move_to_device(&args.bias);
    move_to_device(&args.key_padding);
    CHECK(heed_layer_forward(layer, &args)); /* on the default stream, which copies wait for */
    cuda_check(cuda.copy_to_host(y, (uintptr_t)args.y.data, sizeof(float) * (size_t)args.y.size), "cuMemcpyDtoH");
    release_copies();
}

/* Runs the call and compares y with `wanted`. */
static void forward(const heed_layer_config *config, const heed_layer_weights *weights, heed_layer_args *args,
                    heed_tensor wanted) {
    float *const y = malloc(sizeof(float) * (size_t)wanted.size);
    const float bound = 1e-5f; /* some hundred units of rounding: sums of up to 1024 products */
    float largest = 0, size = 0;
    heed_layer *layer;
    CHECK(heed_layer_create(config, weights, &layer));
    args->y.data = y;
    args->y.size = wanted.size;
    args->execution.device = device;
    args->execution.workspace_bytes = heed_layer_workspace_bytes(layer);
    if (posix_memalign(&args->execution.workspace, 128, args->execution.workspace_bytes) != 0) exit(1);
    if (device == HEED_CUDA) {
        forward_on_device(layer, *args);
    } else {
        CHECK(heed_layer_forward(layer, args));
    }
    for (int64_t i = 0; i < wanted.size; i++) {
        const float exact = ((const float *)wanted.data)[i];
        largest = fmaxf(largest, fabsf(y[i] - exact));
        size = fmaxf(size, fabsf(exact));
    }
    printf("largest difference %.1e of values up to %.2f\n", (double)largest, (double)size);
    if (!(largest <= bound * size)) {
        fprintf(stderr, "the difference is beyond %g of the largest value\n", (double)bound);
        exit(1);
    }
    heed_layer_destroy(layer);
    free(args->execution.workspace);
    free(y);
}

/* A fused layer of training code: one weight for q, k and v, clip, norms, a bias, padding; the prompt. */
static void fused(const heed_weights_file *file) {
    enum { batch = 3, d_model = 128, prompt = 36, total = 41 };
    heed_layer_config config;
    heed_layer_weights weights;
    heed_layer_args args;
    const heed_tensor x = find(file, "x"), padding = find(file, "key_padding");
    float tokens[batch * prompt * d_model];
    uint8_t valid[batch * prompt];
    memset(&weights, 0, sizeof(weights));
    weights.struct_size = sizeof(weights);
    weights.wqkv = find(file, "wqkv");
    weights.bqkv = find(file, "bqkv");
    weights.wo = find(file, "wo");
    weights.bo = find(file, "bo");
    weights.q_norm_weight = find(file, "q_norm_weight");
    weights.q_norm_bias = find(file, "q_norm_bias");
    weights.k_norm_weight = find(file, "k_norm_weight");
    weights.k_norm_bias = find(file, "k_norm_bias");
    CHECK(heed_layer_config_init(&config));
    config.device = device;
    config.dim_in = d_model;
    config.num_heads = 8;
    config.num_kv_heads = 2;
    config.max_batch = batch;
    config.max_q_len = prompt;
    config.weight_layout = HEED_WEIGHTS_FUSED;
    config.causal = true;
    config.clip_qkv = 1;
    config.qk_norm = HEED_QK_NORM_MODEL;
    for (int b = 0; b < batch; b++) {
        memcpy(tokens + b * prompt * d_model, (const float *)x.data + b * total * d_model,
               sizeof(float) * prompt * d_model);
        memcpy(valid + b * prompt, (const uint8_t *)padding.data + b * total, prompt);
    }
    memset(&args, 0, sizeof(args));
    args.struct_size = sizeof(args);
    args.batch = batch;
    args.q_len = prompt;
    args.x.data = tokens;
    args.x.size = batch * prompt * d_model;
    args.bias = find(file, "bias"); /* [1, 8, 1, 41], of which the call sees 36 keys */
    args.bias_shape[0] = args.bias_shape[2] = 1;
    args.bias_layout.stride[1] = total;
    args.bias_layout.stride[3] = 1;
    args.key_padding.data = valid;
    args.key_padding.size = batch * prompt;
    args.key_padding.dtype = HEED_U8;
    forward(&config, &weights, &args, find(file, "y0"));
}

int main(int argc, char **argv) {
    const char *const name = getenv("HEED_TEST_DEVICE");
    char path[4096];
    heed_weights_file *file;
    if (argc != 2) return fprintf(stderr, "usage: heed_layer_forms_c FOLDER\n"), 2;
    device = name != NULL && strcmp(name, "cuda") == 0 ? HEED_CUDA : HEED_CPU;
    if (device == HEED_CUDA) cuda = cuda_start();
    snprintf(path, sizeof(path), "%s/fused_gqa.safetensors", argv[1]);
    CHECK(heed_weights_open(path, &file));
    fused(file);
    heed_weights_close(file);
    return 0;
}
