#include "generators/driver/tile_hints.h"

#include <array>
#include <cstdint>
#include <fstream>

#include "generators/common/bad_input.h"
#include "generators/driver/machine_code.h"

namespace heed {

namespace {

int count(const std::string &text, const std::string &word) {
    int found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) found++;
    return found;
}

// Five bytes of an instruction: three of VEX (map 0F38, 128 bits, W 0), the opcode, ModRM.
class TileInstruction {
public:
    static constexpr size_t length = 5;

    explicit TileInstruction(const char *bytes) {
        for (size_t n = 0; n < length; n++) code[n] = static_cast<uint8_t>(bytes[n]);
    }
    // TILELOADD: prefix F2, no vvvv, memory with SIB.
    bool is_load() const { return is_vex() && code[2] == 0x7b && code[3] == 0x4b && mod() != 3 && rm() == 4; }
    bool is_product() const { return is_vex() && (code[2] & 3) == 2 && code[3] == 0x5c && mod() == 3; }
    int reg() const { return code[4] >> 3 & 7; }
    int first_factor() const { return rm(); }
    int second_factor() const { return ~(code[2] >> 3) & 7; }

private:
    std::array<uint8_t, length> code{};

    bool is_vex() const { return code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x84) == 0; }
    int mod() const { return code[4] >> 6; }
    int rm() const { return code[4] & 7; }
};

constexpr char prefix_66 = 0x79;  // TILELOADDT1's second byte of VEX

}  // namespace

void load_streams_past_l1(const std::string &object, const std::string &assembly) {
    std::string bytes = bytes_of(object);
    int loads = 0;
    for (const auto &[begin, size] : executed_sections(bytes)) {
        std::array<size_t, 8> last_loaded_at{};  // by tile register
        std::array<size_t, 8> loaded_at{};       // the same where no product has read it yet; 0: nowhere
        for (size_t at = begin; at + TileInstruction::length <= begin + size; at++) {
            const TileInstruction instruction(&bytes[at]);
            if (instruction.is_load()) {
                loads++;
                loaded_at[instruction.reg()] = last_loaded_at[instruction.reg()] = at;
            } else if (instruction.is_product()) {
                const int first = instruction.first_factor(), second = instruction.second_factor();
                const bool both = loaded_at[second] < last_loaded_at[first];
                for (const int factor : {first, second}) {
                    if (loaded_at[factor] != 0 && (factor == first || both)) bytes[loaded_at[factor] + 2] = prefix_66;
                    loaded_at[factor] = 0;
                }
                loaded_at[instruction.reg()] = 0;
            }
        }
    }
    if (loads != count(bytes_of(assembly), "tileloadd\t")) {
        throw BadInput(object + " has " + std::to_string(loads) + " loads of tiles, " + assembly + " other ones");
    }
    std::ofstream file(object, std::ios::binary);
    file << bytes;
    if (!file.flush()) throw BadInput("cannot write " + object);
}

}  // namespace heed
