// Where registers are kept. PTX names thousands of them, of which few are alive at a time: registers whose lives do not
// overlap share a place, so that a warp's fit a cache.
#include <algorithm>
#include <cstring>

#include "tests/cuda_device/kernel_builder.h"

namespace heed::device {
namespace {

constexpr uint32_t unit = 4 * warp_size;

// From the first to the last instruction where a register may hold a value that is still read.
struct Life {
    size_t first = ~size_t{0}, last = 0;

    void extend(size_t at) {
        first = std::min(first, at);
        last = std::max(last, at);
    }
    bool lives() const { return first <= last; }
};

using Bits = std::vector<uint64_t>;

bool test(const Bits &bits, Operand r) { return (bits[static_cast<size_t>(r) / 64] >> (r % 64) & 1) != 0; }
void set(Bits &bits, Operand r) { bits[static_cast<size_t>(r) / 64] |= 1ull << (r % 64); }

// Instructions that only run one after another: [begin, end).
struct Section {
    size_t begin = 0, end = 0;
    std::vector<size_t> next;  // sections
    Bits reads, writes, alive_before, alive_after;
};

template <typename F>
void for_each_read(const Kernel &kernel, const Instruction &i, F f) {
    for (size_t o = i.num_results; o < i.num_operands; o++) {
        const Operand operand = kernel.operands[i.operands + o];
        if (operand >= num_specials) f(operand);
    }
    if (i.predicated && i.predicate >= num_specials) f(i.predicate);
}

template <typename F>
void for_each_write(const Kernel &kernel, const Instruction &i, F f) {
    for (size_t o = 0; o < i.num_results; o++) f(kernel.operands[i.operands + o]);
}

std::vector<Section> find_sections(const Kernel &kernel, size_t num_registers) {
    const std::vector<Instruction> &code = kernel.code;
    std::vector<size_t> section_of(code.size() + 1, 0);
    section_of[0] = 1;
    for (size_t i = 0; i < code.size(); i++) {
        if (code[i].op != Op::branch && code[i].op != Op::exit) continue;
        section_of[i + 1] = 1;
        if (code[i].op == Op::branch) section_of[static_cast<size_t>(code[i].target)] = 1;
    }
    std::vector<Section> sections;
    for (size_t i = 0; i < code.size(); i++) {
        if (section_of[i] != 0) {
            sections.emplace_back();
            sections.back().begin = i;
        }
        section_of[i] = sections.size() - 1;
        sections.back().end = i + 1;
    }
    const size_t words = num_registers / 64 + 1;
    for (Section &section : sections) {
        section.reads = section.writes = section.alive_before = section.alive_after = Bits(words);
        for (size_t i = section.begin; i < section.end; i++) {
            for_each_read(kernel, code[i], [&](Operand r) {
                if (!test(section.writes, r)) set(section.reads, r);
            });
            // A predicated instruction may leave the old value.
            if (!code[i].predicated) for_each_write(kernel, code[i], [&](Operand r) { set(section.writes, r); });
        }
        const Instruction &last = code[section.end - 1];
        const bool goes_on = (last.op != Op::branch && last.op != Op::exit) || last.predicated;
        if (last.op == Op::branch) section.next.push_back(section_of[static_cast<size_t>(last.target)]);
        if (goes_on && section.end < code.size()) section.next.push_back(section_of[section.end]);
    }
    return sections;
}

void find_alive(std::vector<Section> &sections) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t s = sections.size(); s-- > 0;) {
            Section &section = sections[s];
            for (size_t word = 0; word < section.reads.size(); word++) {
                uint64_t after = 0;
                for (const size_t next : section.next) after |= sections[next].alive_before[word];
                const uint64_t before = section.reads[word] | (after & ~section.writes[word]);
                changed |= before != section.alive_before[word];
                section.alive_before[word] = before;
                section.alive_after[word] = after;
            }
        }
    }
}

std::vector<Life> find_lives(const Kernel &kernel, const std::vector<Section> &sections, size_t num_registers) {
    std::vector<Life> lives(num_registers);
    for (const Section &section : sections) {
        for (size_t r = num_specials; r < num_registers; r++) {
            const auto reg = static_cast<Operand>(r);
            if (test(section.alive_before, reg)) lives[r].extend(section.begin);
            if (test(section.alive_after, reg)) lives[r].extend(section.end - 1);
        }
        for (size_t i = section.begin; i < section.end; i++) {
            const auto extend = [&](Operand r) { lives[static_cast<size_t>(r)].extend(i); };
            for_each_read(kernel, kernel.code[i], extend);
            for_each_write(kernel, kernel.code[i], extend);
        }
    }
    return lives;
}

// Places, in the order of the lives' beginnings. A result does not take the place of a source of its own instruction.
std::vector<uint32_t> place_registers(const std::vector<Life> &lives, const std::vector<int> &register_bits,
                                      uint32_t *bytes) {
    std::vector<uint32_t> places(lives.size());
    for (size_t r = 0; r < num_specials; r++) places[r] = static_cast<uint32_t>(r) * unit;
    *bytes = num_specials * unit;
    std::vector<size_t> by_first, by_last;
    for (size_t r = num_specials; r < lives.size(); r++)
        if (lives[r].lives()) by_first.push_back(r);
    by_last = by_first;
    std::sort(by_first.begin(), by_first.end(), [&](size_t a, size_t b) { return lives[a].first < lives[b].first; });
    std::sort(by_last.begin(), by_last.end(), [&](size_t a, size_t b) { return lives[a].last < lives[b].last; });
    std::vector<uint32_t> free_places[2];
    size_t ended = 0;
    for (const size_t r : by_first) {
        for (; lives[by_last[ended]].last < lives[r].first; ended++)
            free_places[register_bits[by_last[ended]] == 64].push_back(places[by_last[ended]]);
        const bool wide = register_bits[r] == 64;
        if (free_places[wide].empty()) {
            places[r] = *bytes;
            *bytes += wide ? 2 * unit : unit;
        } else {
            places[r] = free_places[wide].back();
            free_places[wide].pop_back();
        }
    }
    return places;
}

}  // namespace

void assign_slots(Kernel &kernel, const std::vector<int> &register_bits,
                  const std::vector<std::pair<int, uint64_t>> &constants) {
    std::vector<Section> sections = find_sections(kernel, register_bits.size());
    find_alive(sections);
    const std::vector<Life> lives = find_lives(kernel, sections, register_bits.size());
    const std::vector<uint32_t> places = place_registers(lives, register_bits, &kernel.register_bytes);
    for (size_t r = num_specials; r < register_bits.size(); r++) {
        if (!test(sections[0].alive_before, static_cast<Operand>(r))) continue;
        kernel.undefined.push_back(places[r]);
        if (register_bits[r] == 64) kernel.undefined.push_back(places[r] + unit);
    }
    std::vector<uint32_t> constant_places;
    uint32_t constant_bytes = 0;
    for (const auto &constant : constants) {
        constant_places.push_back(constant_bytes);
        constant_bytes += constant.first == 64 ? 2 * unit : unit;
    }
    kernel.constants.resize(constant_bytes / sizeof(CacheLine));
    for (size_t i = 0; i < constants.size(); i++) {
        const size_t bytes = constants[i].first == 64 ? 8 : 4;
        uint8_t *to = reinterpret_cast<uint8_t *>(kernel.constants.data()) + constant_places[i];
        for (size_t lane = 0; lane < warp_size; lane++) std::memcpy(to + lane * bytes, &constants[i].second, bytes);
    }
    const auto place = [&](Operand &operand) {
        operand = static_cast<Operand>(operand >= 0 ? places[static_cast<size_t>(operand)]
                                                    : constant_places[static_cast<size_t>(~operand)] + 1);
    };
    for (Operand &operand : kernel.operands) place(operand);
    for (Instruction &instruction : kernel.code)
        if (instruction.predicated) place(instruction.predicate);
}

}  // namespace heed::device
