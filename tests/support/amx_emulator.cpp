// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TDPBF16PS, TILELOADD,
// TILERELEASE, TILESTORED, TILEZERO; section 2.1.5, the encoding of VEX.
#include "tests/support/amx_emulator.h"

#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/cpu.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

constexpr int max_rows = 16, row_bytes = 64;

// LDTILECFG's operand.
struct TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
};

// What a thread holds.
struct Tiles {
    TileConfig config;
    alignas(64) uint8_t data[8][max_rows][row_bytes];
};
thread_local Tiles tiles;

struct Instruction {
    int opcode, prefix;          // prefix: 0 none, 1 66, 2 F3, 3 F2
    int reg, rm, vvvv;           // registers
    bool in_memory;              // rm is not a register
    bool moves_word;             // VMOVW, of AVX-512 FP16
    uint8_t *address = nullptr;  // of memory, without the index of SIBMEM
    int64_t stride = 0;          // the index times its scale
    int length = 0;
};

int64_t general_register(const ucontext_t &at, int number) {
    static const int places[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return at.uc_mcontext.gregs[places[number]];
}

template <typename T>
T read_as(const uint8_t *from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

// All instructions of AMX have three bytes of VEX, map 0F38, 128 bits, W 0. VMOVW has four of EVEX, map 5, 128 bits,
// and counts a displacement of one byte in elements. False: another instruction.
bool decode(const uint8_t *code, const ucontext_t &at, Instruction &out) {
    const bool vex = code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x84) == 0;
    out.moves_word = code[0] == 0x62 && (code[1] & 0x1f) == 0x15 && code[2] == 0x7d && code[3] == 0x08;
    if (!vex && !out.moves_word) return false;
    const int high_reg = code[1] & 0x80 ? 0 : 8, high_index = code[1] & 0x40 ? 0 : 8,
              high_base = code[1] & 0x20 ? 0 : 8;
    out.vvvv = ~(code[2] >> 3) & 15;
    out.prefix = code[2] & 3;
    const uint8_t *next = code + (vex ? 3 : 4);
    out.opcode = *next++;
    const int modrm = *next++, mod = modrm >> 6, rm = modrm & 7;
    out.reg = (modrm >> 3 & 7) + high_reg;
    out.rm = rm + high_base;
    out.in_memory = mod != 3;
    if (out.in_memory) {
        int64_t address = 0;
        bool relative_to_next = false, displacement_only = false;
        if (rm == 4) {
            const int sib = *next++, index = (sib >> 3 & 7) + high_index, base = (sib & 7) + high_base;
            if (index != 4) out.stride = general_register(at, index) * (int64_t{1} << (sib >> 6));
            displacement_only = mod == 0 && (sib & 7) == 5;
            if (!displacement_only) address = general_register(at, base);
        } else {
            relative_to_next = mod == 0 && rm == 5;
            if (!relative_to_next) address = general_register(at, out.rm);
        }
        if (mod == 1) {
            address += read_as<int8_t>(next) * (out.moves_word ? 2 : 1);
            next += 1;
        } else if (mod == 2 || relative_to_next || displacement_only) {
            address += read_as<int32_t>(next);
            next += 4;
        }
        if (relative_to_next) address += reinterpret_cast<intptr_t>(next);
        out.address = reinterpret_cast<uint8_t *>(address);
    }
    out.length = static_cast<int>(next - code);
    return true;
}

// A bf16 in the upper or lower half of a word; subnormals count as 0.
float element(uint32_t word, int half) {
    const uint32_t bits = half == 0 ? word << 16 : word & 0xffff0000u;
    return (bits & 0x7f800000u) == 0 ? 0.f : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
}

// Sums of even and of odd elements apart, then added to c; subnormal results become 0.
void multiply(int c, int a, int b) {
    const TileConfig &config = tiles.config;
    const int rows = config.rows[a], pairs = config.bytes_per_row[a] / 4, columns = config.bytes_per_row[c] / 4;
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);  // round to nearest, flush results, subnormal operands are 0, no exceptions
    for (int m = 0; m < rows; m++) {
        float even[max_rows] = {}, odd[max_rows] = {};
        for (int p = 0; p < pairs; p++) {
            const auto of_a = read_as<uint32_t>(&tiles.data[a][m][4 * p]);
            const float a_even = element(of_a, 0), a_odd = element(of_a, 1);
            for (int n = 0; n < columns; n++) {
                const auto of_b = read_as<uint32_t>(&tiles.data[b][p][4 * n]);
                even[n] = __builtin_fmaf(a_even, element(of_b, 0), even[n]);
                odd[n] = __builtin_fmaf(a_odd, element(of_b, 1), odd[n]);
            }
        }
        for (int n = 0; n < columns; n++) {
            uint8_t *sum = &tiles.data[c][m][4 * n];
            const float value = read_as<float>(sum) + (even[n] + odd[n]);
            std::memcpy(sum, &value, sizeof(value));
        }
    }
    _mm_setcsr(mode);
}

void copy_rows(const Instruction &in, bool to_memory) {
    for (int row = 0; row < tiles.config.rows[in.reg]; row++) {
        uint8_t *memory = in.address + row * in.stride, *tile = tiles.data[in.reg][row];
        std::memcpy(to_memory ? memory : tile, to_memory ? tile : memory, tiles.config.bytes_per_row[in.reg]);
    }
}

void clear(int tile) { std::memset(tiles.data[tile], 0, sizeof(tiles.data[tile])); }

// False where the instruction is none of AMX or the tiles are not configured for it: the CPU would refuse it too.
bool carry_out(const Instruction &in) {
    constexpr int configure = 0x49, move = 0x4b, dot_bf16 = 0x5c;
    if (in.opcode == configure && in.prefix == 0) {
        std::memset(&tiles, 0, sizeof(tiles));
        if (in.in_memory) std::memcpy(&tiles.config, in.address, sizeof(tiles.config));
        return true;
    }
    if (tiles.config.palette != 1 || in.reg > 7) return false;
    if (in.opcode == configure && in.prefix == 3 && !in.in_memory) {
        clear(in.reg);
    } else if (in.opcode == move && (in.prefix == 3 || in.prefix == 1)) {  // TILELOADD, TILELOADDT1
        clear(in.reg);
        copy_rows(in, false);
    } else if (in.opcode == move && in.prefix == 2) {
        copy_rows(in, true);
    } else if (in.opcode == dot_bf16 && in.prefix == 2 && in.rm <= 7 && in.vvvv <= 7) {
        multiply(in.reg, in.rm, in.vvvv);
    } else {
        return false;
    }
    return true;
}

// 16 bits of memory to the lowest of a vector register, zeros after them; those beyond its 128 bits stay as they are,
// which the VPINSRW that follow clear.
bool move_word(const Instruction &in, ucontext_t &at) {
    if (in.opcode != 0x6e || !in.in_memory) return false;
    uint32_t(&words)[4] = at.uc_mcontext.fpregs->_xmm[in.reg].element;
    std::memset(words, 0, sizeof(words));
    words[0] = read_as<uint16_t>(in.address + in.stride);
    return true;
}

void report_unknown(const uint8_t *code) {
    char text[128] = "the emulator of AMX does not know this instruction, or its tiles are not configured:";
    size_t length = std::strlen(text);
    for (int i = 0; i < 12; i++) {
        const char *const digits = "0123456789abcdef";
        text[length++] = ' ';
        text[length++] = digits[code[i] >> 4];
        text[length++] = digits[code[i] & 15];
    }
    text[length++] = '\n';
    if (write(STDERR_FILENO, text, length) < 0) return;
}

// One instruction, if it is one of those known here.
bool step(ucontext_t &at) {
    auto &pc = at.uc_mcontext.gregs[REG_RIP];
    Instruction instruction;
    if (!decode(reinterpret_cast<const uint8_t *>(pc), at, instruction)) return false;
    if (!(instruction.moves_word ? move_word(instruction, at) : carry_out(instruction))) return false;
    pc += instruction.length;
    return true;
}

void on_illegal_instruction(int signal_number, siginfo_t *, void *context) {
    auto &at = *static_cast<ucontext_t *>(context);
    const auto pc = at.uc_mcontext.gregs[REG_RIP];
    // Those that follow at once as well: a signal costs more than what it is for.
    while (step(at)) continue;
    if (at.uc_mcontext.gregs[REG_RIP] == pc) {
        report_unknown(reinterpret_cast<const uint8_t *>(pc));
        signal(signal_number, SIG_DFL);  // strikes again
    }
}

bool emulated = false;

}  // namespace

bool amx_is_emulated() { return emulated; }

void emulate_amx() {
    const std::vector<heed_isa> built = isas_of_device();
    if (std::find(built.begin(), built.end(), HEED_AMX) == built.end()) return;
    if (heed::cpu_supports(heed::Isa::amx) || !heed::cpu_supports(heed::Isa::avx512bf16)) return;
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
    heed::assume_cpu_supports(heed::Isa::amx);
    emulated = true;
}

}  // namespace heed_test
