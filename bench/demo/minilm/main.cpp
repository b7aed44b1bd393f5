// Encodes a book with all-MiniLM-L6-v2 and answers queries by semantic search. Attention blocks are Heed's, the rest is
// Eigen's.
#include "ceilings.h"
#include "encoder.h"
#include "npy.h"
#include "report.h"
#include "stopwatch.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace minilm {
namespace {

constexpr size_t batch_size = 32;
constexpr size_t best_answers = 3;
constexpr int max_threads = 1024;

const char usage[] = "usage: heed_minilm FOLDER [--threads N] [--out FOLDER] [--skip-naive]\n"
                     "  FOLDER        with assets.json, written by prepare.py: weights, sentences, passages, queries\n"
                     "  --threads N   threads for everything (2)\n"
                     "  --out FOLDER  write the embeddings there as sentences.npy, passages.npy, queries.npy\n"
                     "  --skip-naive  do not run the naive attention blocks beside Heed's\n";

struct Options {
    std::string folder, out;
    int threads = 2;
    bool with_naive = true;
    bool help = false;
    bool ignore_key_lengths = false;  // lets a test prove that the lengths matter
};

struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

int parse_threads(const std::string &text) {
    char *end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < 1 || value > max_threads) {
        throw UsageError("--threads " + text + " is not in 1.." + std::to_string(max_threads));
    }
    return static_cast<int>(value);
}

Options parse_options(int argc, char **argv) {
    Options options;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        const auto value = [&] {
            if (++i == argc) throw UsageError(name + " needs a value");
            return std::string(argv[i]);
        };
        if (name == "--help")
            options.help = true;
        else if (name == "--threads")
            options.threads = parse_threads(value());
        else if (name == "--out")
            options.out = value();
        else if (name == "--skip-naive")
            options.with_naive = false;
        else if (name == "--ignore-key-lengths")
            options.ignore_key_lengths = true;
        else if (name.rfind("--", 0) == 0 || !options.folder.empty())
            throw UsageError("unknown argument " + name);
        else
            options.folder = name;
    }
    if (options.folder.empty() && !options.help) throw UsageError("FOLDER is missing");
    return options;
}

class Demo {
public:
    Demo(const Encoder &encoder, const Options &options)
        : encoder_(encoder), options_(options),
          attention_(encoder.make_workspace(), options.threads, options.ignore_key_lengths, options.with_naive) {}

    // Embeds the pieces, keeps what it cost, and writes NAME.npy when asked.
    Matrix embed(const std::string &name, const std::vector<Piece> &pieces) {
        const Stopwatch watch;
        Matrix embeddings = encoder_.embed(pieces, attention_);
        Run run;
        run.name = name;
        run.attention = attention_.take_totals();
        run.encode_seconds = watch.seconds() - run.attention.naive_seconds;
        run.count = pieces.size();
        for (const Piece &piece : pieces) {
            run.tokens += piece.ids.size();
            run.longest = std::max(run.longest, piece.ids.size());
        }
        runs_.push_back(std::move(run));
        if (!options_.out.empty()) {
            heed_demo::write_npy(options_.out + "/" + name + ".npy", embeddings.data(), embeddings.rows(),
                                 embeddings.cols());
        }
        return embeddings;
    }

    void print_table() const {
        const double peak = heed_bench::fma_peak_gflops(options_.threads);
        print_runs(runs_, peak, options_.threads, options_.with_naive);
    }

private:
    const Encoder &encoder_;
    const Options &options_;
    MeasuredAttention attention_;
    std::vector<Run> runs_;
};

void run(const Options &options) {
    const Assets assets = read_assets(options.folder + "/assets.json", vocabulary, max_tokens);
    std::printf("Heed demo: semantic search with a transformer encoder\n"
                "  model  all-MiniLM-L6-v2: %d layers, %d heads of %d, f32\n"
                "  text   %s: %zu sentences\n"
                "  Attention blocks with their projections run in Heed's kernels, generated ahead of time; the rest "
                "runs in Eigen.\n",
                num_layers, num_heads, head_dim, assets.title.c_str(), assets.sentences.size());
    std::fflush(stdout);
    const heed::WeightsFile weights(assets.weights);
    const Encoder encoder(weights, batch_size, options.threads);
    Demo demo(encoder, options);
    const Matrix sentences = demo.embed("sentences", assets.sentences);
    const Matrix queries = demo.embed("queries", assets.queries);
    print_answers(assets, sentences, queries, best_answers);
    std::printf("\nThe same text once more as longer passages ...\n");
    std::fflush(stdout);
    demo.embed("passages", assets.passages);
    demo.print_table();
}

}  // namespace
}  // namespace minilm

int main(int argc, char **argv) {
    try {
        const minilm::Options options = minilm::parse_options(argc, argv);
        if (options.help) {
            std::fputs(minilm::usage, stdout);
        } else {
            minilm::run(options);
        }
        return 0;
    } catch (const minilm::UsageError &error) {
        std::fprintf(stderr, "heed_minilm: %s\n%s", error.what(), minilm::usage);
        return 2;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_minilm: %s\n", error.what());
        return 1;
    }
}
