// What passes make of the product of a tile of f16 and one of int8 codes, both in shared memory.
#include <gtest/gtest.h>

#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/place_over.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/tile_products.h"
#include "schedules/cuda/tile_product.h"
#include "tests/codegen/device_kernel.h"

namespace {

using namespace Halide;

constexpr int edge = 16, length = 32;

// 16 rows of 32 elements times 16 rows of codes, by a warp. in_order: elements are where the codes' lanes look for
// them.
struct CodesKernel : DeviceKernel {
    Var block{"which"};
    RDom all{0, edge, 0, edge, 0, count, "all"};
    heed::TileProduct product{{edge, edge, edge, length / edge, false}, length};

    explicit CodesKernel(bool in_order) {
        const auto rows = [&](heed::ElementType type, const Expr &address, const Var &line) {
            const Expr bytes = heed::bytes_of(heed::stored_type(type), length);
            return heed::TileRows{type, {block}, heed::after(address, block * edge + line, bytes)};
        };
        heed::TileRows x = rows(heed::ElementType::f16, from, product.row);
        x.meets_codes = in_order;
        product.define_product(x, rows(heed::ElementType::i8, to, product.column), {block});
        add(heed::store_at(to, (all.z * edge + all.y) * edge + all.x, product.sum(all.x, all.y, all.z)));
    }
};

std::map<std::string, int> product_of_codes(bool in_order) {
    CodesKernel kernel(in_order);
    heed::TileProduct &product = kernel.product;
    Stage results = kernel.named.update();
    const heed::Dealt dealt = heed::in_low_fragments(results, kernel.all.x, kernel.all.y);
    heed::deal_out(results, dealt, {}, {kernel.all.z});
    results.gpu_blocks(kernel.all.z);
    const LoopLevel at(kernel.named, kernel.all.z);
    heed::schedule_sum(product, at, heed::in_low_fragments);
    for (Func *tile : {&product.x_tile, &product.w_tile}) {
        heed::schedule_copies(product, *tile, edge, 32);
        tile->compute_at(at).store_in(MemoryType::Stack);
    }
    if (in_order) {
        heed::schedule_own(product, product.x_own, at, edge, 2);
        heed::schedule_ordered(product, at, edge, 2);
    }
    return instructions(heed::compile_cuda(device_spec("codes"), kernel, 32, [&](heed::Passes &passes) {
        passes.add_exactly<heed::LowerTileProducts>(1, "products", 32);
        passes.add<heed::PrivateRegisters>(32);
        if (in_order) passes.add_exactly<heed::PlaceOver>(1, "arrays", product.x_ordered.name(), product.x_tile.name());
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(heed::shared_bytes_of(product.tile, edge) +
                                            heed::shared_bytes_of(product.tile, edge, 1));
    }));
}

// Two fragments of a as they are, four matrices of codes, two tiles of columns; a thread stores anew the 8 pairs of
// elements that it has of two rows.
TEST(TileProducts, OfCodesReadElementsInTheirOrder) {
    const auto found = product_of_codes(true);
    EXPECT_EQ(found.at("heed_mma_f16"), 4);
    EXPECT_EQ(found.at("heed_load_matrices"), 2 + 1);
    EXPECT_EQ(found.at("heed_store_shared_u32"), 8);
}

TEST(TileProducts, OfCodesRefuseElementsInAnotherOrder) { EXPECT_THROW(product_of_codes(false), heed::BadInput); }

}  // namespace
