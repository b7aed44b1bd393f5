#include "generators/common/kernel_arguments.h"

#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;

Type ArgumentTypes::of(Element element) const {
    switch (element) {
    case Element::own:
        return stored_type(own);
    case Element::keys:
        return stored_type(keys);
    case Element::step:
        return in_pairs ? Type(Int(32)) : Type(Float(32));
    case Element::panel:
        return in_pairs ? Type(Int(32)) : stored_type(own);
    case Element::f32:
        return Float(32);
    case Element::i32:
        return Int(32);
    case Element::i8:
        return Int(8);
    case Element::u8:
        return UInt(8);
    case Element::u16:
        return UInt(16);
    }
    return {};
}

WordParams::WordParams(const std::string &name, int entries, int entry_words)
    : entries(entries), entry_words(entry_words) {
    for (int i = 0; i < entries * entry_words; i++) words.emplace_back(name + std::to_string(i));
}

void check_outputs(const Module &module, const std::vector<OutputType> &outputs) {
    size_t next = 0;
    for (const Internal::LoweredArgument &argument : module.functions().back().args) {
        if (!argument.is_output()) continue;
        if (next == outputs.size() || argument.type != outputs[next].type ||
            argument.dimensions != outputs[next].dimensions) {
            throw BadInput("output " + argument.name + " of " + module.name() + " is not the contract's");
        }
        next++;
    }
    if (next != outputs.size()) throw BadInput(module.name() + " has fewer outputs than the contract says");
}

}  // namespace heed
