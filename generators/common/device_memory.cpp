#include "generators/common/device_memory.h"

namespace heed {

using namespace Halide;
using Internal::Call;

Expr load_at(const Type &type, const Expr &address, const Expr &index) {
    return Call::make(type, "heed_load_at", {address, index}, Call::PureExtern);
}
Expr load_at_if(const Expr &on, const Type &type, const Expr &address, const Expr &index) {
    return Call::make(type, "heed_load_at_if", {address, index, cast<int32_t>(on)}, Call::PureExtern);
}
Expr load_chunks_if(const Expr &on, const Expr &whole, const Type &type, const Expr &address, const Expr &index,
                    const Expr &end) {
    std::vector<Expr> args = {address, index, cast<int32_t>(on), cast<int32_t>(whole)};
    if (end.defined()) args.push_back(end);
    return Call::make(type, "heed_load_chunks_if", args, Call::PureExtern);
}
Expr float_at(ElementType type, const Expr &address, const Expr &index) {
    return to_float(type, load_at(stored_type(type), address, index));
}
Expr store_at(const Expr &address, const Expr &index, const Expr &value) {
    return Call::make(UInt(8), "heed_store_at", {address, index, value}, Call::Extern);
}
Expr store_at_if(const Expr &on, const Expr &address, const Expr &index, const Expr &value) {
    return Call::make(UInt(8), "heed_store_at_if", {address, index, value, on}, Call::Extern);
}
Expr store_at_if_zero(const Expr &on, const Expr &address, const Expr &value) {
    return Call::make(UInt(8), "heed_store_at_if_zero", {address, 0, value, on}, Call::Extern);
}
Expr address_of(const OutputImageParam &buffer) {
    const Expr self =
        Internal::Variable::make(type_of<halide_buffer_t *>(), buffer.name() + ".buffer", buffer.parameter());
    return Call::make(UInt(64), "heed_address_of", {self}, Call::PureExtern);
}
Expr entry_word(const WordParams &list, const Expr &entry, int w) {
    std::vector<Expr> args = {entry};
    for (int i = 0; i < list.entries; i++) args.emplace_back(list.words[i * list.entry_words + w]);
    return Call::make(UInt(64), "heed_entry_word", args, Call::PureExtern);
}

Expr fused_on_device(const Expr &x, const Expr &y, const Expr &z) {
    return Call::make(Float(32), "heed_fma", {x, y, z}, Call::PureExtern);
}
Expr exp2_on_device(const Expr &x) { return Call::make(Float(32), "heed_exp2", {x}, Call::PureExtern); }
Expr maximum_on_device(const Expr &x, const Expr &y) {
    return Call::make(Float(32), "heed_maximum", {x, y}, Call::PureExtern);
}
Expr reciprocal_on_device(const Expr &x) { return Call::make(Float(32), "heed_reciprocal", {x}, Call::PureExtern); }
Expr magnitude_on_device(const Expr &x) { return Call::make(Float(32), "heed_magnitude", {x}, Call::PureExtern); }
Expr rounded_on_device(ElementType type, const Expr &x) {
    return Call::make(Float(32), std::string("heed_rounded_") + name_of(type), {x}, Call::PureExtern);
}

Expr packed_on_device(ElementType type, const Expr &low, const Expr &high) {
    return Call::make(UInt(32), std::string("heed_pack_") + name_of(type), {low, high}, Call::PureExtern);
}

Expr of_terms(const Expr &condition) { return Call::make(Bool(), "heed_of_terms", {condition}, Call::PureExtern); }

Expr same_for_block(const Expr &condition) {
    return Call::make(Bool(), "heed_same_for_block", {condition}, Call::PureExtern);
}

Expr in_repetition(const Expr &step) { return Call::make(Bool(), "heed_in_repetition", {step}, Call::PureExtern); }

Expr bytes_of(const Type &type, const Expr &count) { return cast<uint64_t>(count) * cast<uint64_t>(type.bytes()); }
Expr after(const Expr &address, const Expr &count, const Expr &bytes) {
    return address + cast<uint64_t>(count) * bytes;
}

Results::Results() {
    Var u{"u"};
    named(u) = undef<uint8_t>();
}

void Results::add(const Expr &stored) {
    named(0) += stored;
    named.update(parts++).allow_race_conditions();
}

}  // namespace heed
