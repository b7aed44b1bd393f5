/* The five forms of attention layers in C99: weights from a safetensors file, one layer, one call. Each prints the
 * largest difference to the numpy results. Usage: heed_layer_forms_c FOLDER. HEED_TEST_DEVICE=cuda in the environment:
 * on CUDA; with HEED_TEST_SLOW=1 the second form is of one sequence, and without rows of f32 with dropout no form
 * trains. */
#define _POSIX_C_SOURCE 200112L /* posix_memalign */
#include "cuda_memory.h"

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

static const char *folder;
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

/* Whether a row of f32 has dropout on the device. */
static bool has_dropout(void) {
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info_t row;
        row.struct_size = sizeof(row);
        CHECK(heed_kernel_info(i, &row));
        if ((row.isa >= HEED_SM75) == (device == HEED_CUDA) && row.dtype == HEED_F32 && row.supported &&
            (row.features & HEED_FEATURE_DROPOUT) != 0 && row.head_dim == 0) {
            return true;
        }
    }
    return false;
}

static heed_weights_file *open_form(const char *name) {
    char path[4096];
    heed_weights_file *file;
    snprintf(path, sizeof(path), "%s/%s.safetensors", folder, name);
    CHECK(heed_weights_open(path, &file));
    return file;
}

static heed_tensor find(const heed_weights_file *file, const char *name) {
    heed_tensor tensor;
    int64_t shape[8];
    int32_t rank;
    CHECK(heed_weights_find(file, name, &tensor, shape, &rank));
    return tensor;
}

static heed_layer_config make_config(int32_t dim_in, int32_t num_heads, int32_t num_kv_heads, int32_t batch,
                                     int32_t q_len) {
    heed_layer_config config;
    CHECK(heed_layer_config_init(&config));
    config.device = device;
    config.dim_in = dim_in;
    config.num_heads = num_heads;
    config.num_kv_heads = num_kv_heads;
    config.max_batch = batch;
    config.max_q_len = q_len;
    return config;
}

static heed_layer_args make_args(int32_t batch, int32_t q_len) {
    heed_layer_args args;
    memset(&args, 0, sizeof(args));
    args.struct_size = sizeof(args);
    args.batch = batch;
    args.q_len = q_len;
    return args;
}

static heed_layer_weights no_weights(void) {
    heed_layer_weights weights;
    memset(&weights, 0, sizeof(weights));
    weights.struct_size = sizeof(weights);
    return weights;
}

static heed_layer_weights separate(const heed_weights_file *file) {
    heed_layer_weights weights = no_weights();
    weights.wq = find(file, "wq");
    weights.wk = find(file, "wk");
    weights.wv = find(file, "wv");
    weights.wo = find(file, "wo");
    weights.bq = find(file, "bq");
    weights.bk = find(file, "bk");
    weights.bv = find(file, "bv");
    weights.bo = find(file, "bo");
    return weights;
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
    move_to_device(&args.memory);
    move_to_device(&args.mask);
    move_to_device(&args.bias);
    move_to_device(&args.key_padding);
    CHECK(heed_layer_forward(layer, &args)); /* on the default stream, which copies wait for */
    cuda_check(cuda.copy_to_host(y, (uintptr_t)args.y.data, sizeof(float) * (size_t)args.y.size), "cuMemcpyDtoH");
    release_copies();
}

/* Runs the call and compares y with the first sequences of the tensor `expected`. */
static void forward(const char *form, const heed_layer_config *config, const heed_layer_weights *weights,
                    heed_layer_args *args, const heed_weights_file *file, const char *expected) {
    const heed_tensor wanted = find(file, expected);
    float *const y = malloc(sizeof(float) * (size_t)wanted.size);
    const float bound = 1e-5f; /* some hundred units of rounding: sums of up to 1024 products */
    float largest = 0, size = 0;
    heed_layer *layer;
    const int64_t count = (int64_t)args->batch * args->q_len * (config->dim_out > 0 ? config->dim_out : config->dim_in);
    CHECK(heed_layer_create(config, weights, &layer));
    args->y.data = y;
    args->y.size = count;
    args->execution.device = device;
    args->execution.workspace_bytes = heed_layer_workspace_bytes(layer);
    if (posix_memalign(&args->execution.workspace, 128, args->execution.workspace_bytes) != 0) exit(1);
    if (device == HEED_CUDA) {
        forward_on_device(layer, *args);
    } else {
        CHECK(heed_layer_forward(layer, args));
    }
    for (int64_t i = 0; i < count; i++) {
        const float exact = ((const float *)wanted.data)[i];
        largest = fmaxf(largest, fabsf(y[i] - exact));
        size = fmaxf(size, fabsf(exact));
    }
    printf("%-28s largest difference %.1e of values up to %.2f\n", form, (double)largest, (double)size);
    if (!(largest <= bound * size)) {
        fprintf(stderr, "%s: the difference is beyond %g of the largest value\n", form, (double)bound);
        exit(1);
    }
    heed_layer_destroy(layer);
    free(args->execution.workspace);
    free(y);
}

/* 1. Multi-query attention from scratch: a mask [seq, seq] of 1 = masked, the scale given. */
static void multi_query_from_scratch(void) {
    heed_weights_file *const file = open_form("mqa_scratch");
    heed_layer_config config = make_config(512, 8, 1, 10, 100);
    heed_layer_args args = make_args(10, 100);
    const heed_layer_weights weights = separate(file);
    config.head_dim = config.head_dim_v = 16;
    config.dim_out = 64;
    config.scale = 1 / sqrtf(16);
    config.mask_true_hides = true;
    args.x = find(file, "x");
    args.mask = find(file, "mask");
    args.mask_shape[0] = args.mask_shape[1] = 1;
    forward("multi-query from scratch", &config, &weights, &args, file, "y");
    heed_weights_close(file);
}

/* 2. Multi-head attention from scratch: causal and padding mask, head_dim 64, head_dim_v 111. */
static void multi_head_from_scratch(void) {
    heed_weights_file *const file = open_form("mha_scratch");
    const char *const slow = getenv("HEED_TEST_SLOW");
    const int32_t batch = slow != NULL && strcmp(slow, "1") == 0 ? 1 : 24;
    heed_layer_config config = make_config(1024, 8, 8, batch, 100);
    heed_layer_args args = make_args(batch, 100);
    const heed_layer_weights weights = separate(file);
    config.head_dim = 64;
    config.head_dim_v = 111;
    config.dim_out = 2048;
    config.causal = true;
    config.mask_true_hides = true;
    args.x = find(file, "x");
    args.key_padding = find(file, "key_padding");
    forward("multi-head from scratch", &config, &weights, &args, file, "y");
    heed_weights_close(file);
}

/* 3. A fused layer of training code: one weight for q, k and v, clip, norms, past keys and values. */
static void fused(void) {
    enum { batch = 3, d_model = 128, prompt = 36, total = 41 };
    heed_weights_file *const file = open_form("fused_gqa");
    heed_layer_config config = make_config(d_model, 8, 2, batch, prompt);
    heed_layer_weights weights = no_weights();
    heed_layer_args args = make_args(batch, prompt);
    const heed_tensor x = find(file, "x"), bias = find(file, "bias"), padding = find(file, "key_padding");
    float tokens[batch * prompt * d_model];
    uint8_t valid[batch * prompt];
    weights.wqkv = find(file, "wqkv");
    weights.bqkv = find(file, "bqkv");
    weights.wo = find(file, "wo");
    weights.bo = find(file, "bo");
    weights.q_norm_weight = find(file, "q_norm_weight");
    weights.q_norm_bias = find(file, "q_norm_bias");
    weights.k_norm_weight = find(file, "k_norm_weight");
    weights.k_norm_bias = find(file, "k_norm_bias");
    config.weight_layout = HEED_WEIGHTS_FUSED;
    config.causal = true;
    config.clip_qkv = 1;
    config.qk_norm = HEED_QK_NORM_MODEL;
    for (int b = 0; b < batch; b++) { /* the prompt; see forms_test.cpp for the steps behind it */
        memcpy(tokens + b * prompt * d_model, (const float *)x.data + b * total * d_model,
               sizeof(float) * prompt * d_model);
        memcpy(valid + b * prompt, (const uint8_t *)padding.data + b * total, prompt);
    }
    args.x.data = tokens;
    args.x.size = batch * prompt * d_model;
    args.bias = bias; /* [1, 8, 1, 41], of which the call sees 36 keys */
    args.bias_shape[0] = args.bias_shape[2] = 1;
    args.bias_layout.stride[1] = total;
    args.bias_layout.stride[3] = 1;
    args.key_padding.data = valid;
    args.key_padding.size = batch * prompt;
    args.key_padding.dtype = HEED_U8;
    forward("fused grouped-query", &config, &weights, &args, file, "y0");
    heed_weights_close(file);
}

/* 4. The multi-query attention paper's batched function: einsum layouts, separate memory, scale 1. */
static void paper(void) {
    heed_weights_file *const file = open_form("paper_mqa");
    heed_layer_config config = make_config(96, 6, 1, 4, 9);
    heed_layer_weights weights = no_weights();
    heed_layer_args args = make_args(4, 9);
    weights.wq = find(file, "P_q");
    weights.wk = find(file, "P_k");
    weights.wv = find(file, "P_v");
    weights.wo = find(file, "P_o");
    config.weight_layout = HEED_WEIGHTS_EINSUM;
    config.cross = true;
    config.head_dim = 16;
    config.head_dim_v = 24;
    config.max_kv_len = 23;
    config.scale = 1;
    args.memory_len = 23;
    args.x = find(file, "X");
    args.memory = find(file, "M");
    args.bias = find(file, "bias");
    forward("multi-query paper", &config, &weights, &args, file, "y");
    heed_weights_close(file);
}

/* 5. Grouped-query attention with dropout: a mask of 0 = masked, dropout in training only. */
static void grouped_query_with_dropout(void) {
    heed_weights_file *const file = open_form("gqa_8_4");
    heed_layer_config config = make_config(128, 8, 4, 3, 2);
    heed_layer_args args = make_args(3, 2);
    const heed_layer_weights weights = separate(file);
    config.dropout_p = 0.1f;
    args.x = find(file, "x");
    args.mask = find(file, "mask");
    args.mask_shape[1] = args.mask_shape[2] = 1;
    args.dropout_seed = 1234567890123;
    args.dropout_offset = 77;
    forward("grouped-query, evaluation", &config, &weights, &args, file, "y_eval");
    args.training = true;
    if (has_dropout()) {
        forward("grouped-query, training", &config, &weights, &args, file, "y_train");
    } else {
        printf("grouped-query, training      not run: no row of f32 with dropout is linked for the device\n");
    }
    heed_weights_close(file);
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: heed_layer_forms_c FOLDER\n"), 2;
    const char *const name = getenv("HEED_TEST_DEVICE");
    folder = argv[1];
    device = name != NULL && strcmp(name, "cuda") == 0 ? HEED_CUDA : HEED_CPU;
    if (device == HEED_CUDA) cuda = cuda_start();
    multi_query_from_scratch();
    multi_head_from_scratch();
    fused();
    paper();
    grouped_query_with_dropout();
    return 0;
}
