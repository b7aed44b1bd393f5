#pragma once
// Lists of the contract (contract/arguments.h) as members of kernels: an ImageParam or a Param for each input, and the
// arguments in the list's order.

#include <string>
#include <vector>

#include "generators/common/element_type.h"
#include "generators/contract/arguments.h"

namespace heed {

enum class Element { own, keys, step, panel, f32, i32, i8, u8, u16 };

// What a list leaves to the kernel.
struct ArgumentTypes {
    ElementType own = ElementType::f32, keys = own;
    bool in_pairs = false;  // steps and panels are two bf16

    Halide::Type of(Element element) const;
};

struct OutputType {
    Halide::Type type;
    int dimensions;
};

// Scalars one after the other, as arguments name0, name1, ..
struct WordParams {
    const int entries, entry_words;
    std::vector<Halide::Param<uint64_t>> words;

    WordParams(const std::string &name, int entries, int entry_words);
};

template <typename T>
struct ParameterOf {
    using type = Halide::Param<T>;
    static type make(const std::string &name) { return type(name); }
};
template <int entries, int entry_words>
struct ParameterOf<Words<entries, entry_words>> {
    using type = WordParams;
    static type make(const std::string &name) { return {name, entries, entry_words}; }
};

template <typename T>
void add_argument(std::vector<Halide::Argument> *list, const T &argument) {
    list->emplace_back(argument);
}
inline void add_argument(std::vector<Halide::Argument> *list, const WordParams &argument) {
    list->insert(list->end(), argument.words.begin(), argument.words.end());
}

// Throws BadInput when what the module of a kernel writes is not what its list says.
void check_outputs(const Halide::Module &module, const std::vector<OutputType> &outputs);

}  // namespace heed

#define HEED_IMAGE_MEMBER(name, element, dims) Halide::ImageParam name{types.of(::heed::Element::element), dims, #name};
#define HEED_PARAM_MEMBER(name, T) ::heed::ParameterOf<T>::type name = ::heed::ParameterOf<T>::make(#name);
#define HEED_ADD_ARGUMENT(name, ...) ::heed::add_argument(&list, name);
#define HEED_ADD_OUTPUT(name, element, dims) list.push_back({types.of(::heed::Element::element), dims});

// For a class with `types` and a member of each input's name.
#define HEED_ARGUMENT_FUNCTIONS(LIST)                                                                                  \
    std::vector<Halide::Argument> arguments() const {                                                                  \
        std::vector<Halide::Argument> list;                                                                            \
        LIST(HEED_ADD_ARGUMENT, HEED_ADD_ARGUMENT, HEED_IGNORE)                                                        \
        return list;                                                                                                   \
    }                                                                                                                  \
    std::vector<::heed::OutputType> output_types() const {                                                             \
        std::vector<::heed::OutputType> list;                                                                          \
        LIST(HEED_IGNORE, HEED_IGNORE, HEED_ADD_OUTPUT)                                                                \
        return list;                                                                                                   \
    }

#define HEED_KERNEL_ARGUMENTS(Name, LIST)                                                                              \
    struct Name {                                                                                                      \
        ::heed::ArgumentTypes types;                                                                                   \
        LIST(HEED_IMAGE_MEMBER, HEED_PARAM_MEMBER, HEED_IGNORE)                                                        \
        explicit Name(const ::heed::ArgumentTypes &argument_types = {}) : types(argument_types) {}                     \
        HEED_ARGUMENT_FUNCTIONS(LIST)                                                                                  \
    };
