#pragma once
// Which accesses of a straight line are of neighbouring elements, for LowerDeviceMemory.

#include <list>
#include <map>
#include <optional>
#include <vector>

#include "Halide.h"
#include "generators/common/bad_input.h"

namespace heed {

// What tells whether accesses are of neighbours: all in terms of loops and parameters.
struct Access {
    Halide::Type type;
    Halide::Expr base, index, on;  // on: undefined for always

    // How far after `other` this one is, where both are of one tensor.
    std::optional<int64_t> offset_from(const Access &other) const {
        const bool same_on =
            on.defined() == other.on.defined() && (!on.defined() || Halide::Internal::equal(on, other.on));
        if (type != other.type || !same_on || !Halide::Internal::equal(base, other.base)) return std::nullopt;
        return Halide::Internal::as_const_int(Halide::Internal::simplify(index - other.index));
    }
};

// Neighbouring elements that are accessed at once.
struct Chunk {
    Access first;
    int count;
    std::vector<Halide::Expr> elements;  // read, or to be stored
    int missing;                         // of those to be stored

    int bytes() const { return first.type.bytes() * count; }
};

// Accesses whose indices differ by constants, and the chunks they make.
class Accesses {
public:
    void add(const Access &access) {
        for (Group &group : groups) {
            if (const auto offset = access.offset_from(group.first)) {
                group.places.emplace(*offset, nullptr);
                return;
            }
        }
        groups.push_back({access, {{0, nullptr}}});
    }

    // Elements that are left over are chunks of one.
    void make_chunks() {
        for (Group &group : groups) {
            for (int count = 16 / group.first.type.bytes(); count > 1; count /= 4) group.make_chunks(count, chunks);
            group.make_chunks(1, chunks);
        }
    }

    // The chunk of an access and its place there.
    std::pair<Chunk *, size_t> find(const Access &access) {
        for (Group &group : groups) {
            if (const auto offset = access.offset_from(group.first)) {
                Chunk *const chunk = group.places.at(*offset);
                return {chunk, static_cast<size_t>(*access.offset_from(chunk->first))};
            }
        }
        throw BadInput("an access that was not counted");
    }

private:
    struct Group {
        Access first;
        std::map<int64_t, Chunk *> places;

        void make_chunks(int count, std::list<Chunk> &chunks) {
            const Halide::Internal::ModulusRemainder alignment = Halide::Internal::modulus_remainder(first.index);
            for (auto &[begin, taken] : places) {
                bool whole = Halide::Internal::mod_imp(alignment.modulus, int64_t{count}) == 0 &&
                             Halide::Internal::mod_imp(alignment.remainder + begin, int64_t{count}) == 0;
                for (int i = 0; i < count && whole; i++) {
                    const auto place = places.find(begin + i);
                    whole = place != places.end() && place->second == nullptr;
                }
                if (!whole) continue;
                chunks.push_back({first, count, std::vector<Halide::Expr>(static_cast<size_t>(count)), count});
                chunks.back().first.index = Halide::Internal::simplify(first.index + static_cast<int>(begin));
                for (int i = 0; i < count; i++) places[begin + i] = &chunks.back();
            }
        }
    };
    std::vector<Group> groups;
    std::list<Chunk> chunks;
};

}  // namespace heed
