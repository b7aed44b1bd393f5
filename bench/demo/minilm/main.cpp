// Encodes a book with all-MiniLM-L6-v2 and answers queries by semantic search. Attention blocks and the products of the
// feed-forward part are Heed's, the rest is Eigen's.
#include "bench/ceilings.h"
#include "bench/demo/minilm/encoder.h"
#include "bench/demo/minilm/report.h"
#include "bench/demo/write_floats.h"
#include "bench/machine.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace minilm {
namespace {

constexpr size_t batch_size = 32;
constexpr size_t best_answers = 3;

struct Options {
    std::string folder, out;
    int threads = 2;
    bool without_naive = false;
    bool ignore_lengths = false;  // pieces of equal lengths: lets a test prove that the lengths matter
};

Options parse(int argc, char **argv) {
    Options options;
    CLI::App app{"Encodes a book with all-MiniLM-L6-v2 and answers queries by semantic search."};
    app.failure_message(CLI::FailureMessage::help);
    app.option_defaults()->always_capture_default();
    app.add_option("FOLDER", options.folder, "with assets.json, written by prepare.py")->required();
    app.add_option("--threads", options.threads, "threads for everything")->check(CLI::Range(1, 1024));
    app.add_option("--out", options.out,
                   "folder: write the embeddings there as sentences.f32, passages.f32, queries.f32");
    app.add_flag("--skip-naive", options.without_naive, "do not run the naive attention blocks to compare with");
    app.add_flag("--ignore-lengths", options.ignore_lengths)->group("");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return options;
}

class Demo {
public:
    Demo(Encoder &encoder, Pool &pool, const Options &options)
        : encoder_(encoder), options_(options),
          attention_(encoder.make_workspace(), pool, options.ignore_lengths, !options.without_naive) {}

    // Embeds the pieces, keeps what it cost, and writes NAME.f32 when asked: row after row.
    Matrix embed(const std::string &name, const std::vector<Piece> &pieces) {
        const double start = heed_bench::wall_seconds();
        Matrix embeddings = encoder_.embed(pieces, attention_);
        Run run;
        run.name = name;
        run.attention = attention_.take_totals();
        run.encode_seconds = heed_bench::wall_seconds() - start - run.attention.naive_seconds;
        run.count = pieces.size();
        for (const Piece &piece : pieces) {
            run.tokens += piece.ids.size();
            run.longest = std::max(run.longest, piece.ids.size());
        }
        runs_.push_back(std::move(run));
        if (!options_.out.empty()) {
            heed_demo::write_floats(options_.out + "/" + name + ".f32", embeddings.data(), embeddings.size());
        }
        return embeddings;
    }

    void print_table() const {
        const double peak = heed_bench::fma_peak_gflops(options_.threads);
        print_runs(runs_, peak, options_.threads, !options_.without_naive);
    }

private:
    Encoder &encoder_;
    const Options &options_;
    MeasuredAttention attention_;
    std::vector<Run> runs_;
};

void run(const Options &options) {
    const Assets assets = read_assets(options.folder + "/assets.json", vocabulary, max_tokens);
    std::printf(
        "Heed demo: semantic search with a transformer encoder\n"
        "  model  all-MiniLM-L6-v2: %d layers, %d heads of %d, f32\n"
        "  text   %s: %zu sentences\n"
        "  Attention blocks and the products of the feed-forward part run in Heed's kernels, generated ahead of "
        "time; the rest runs in Eigen.\n",
        num_layers, num_heads, head_dim, assets.title.c_str(), assets.sentences.size());
    std::fflush(stdout);
    const heed::WeightsFile weights(assets.weights);
    Pool pool(options.threads);
    Encoder encoder(weights, batch_size, pool);
    Demo demo(encoder, pool, options);
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
        minilm::run(minilm::parse(argc, argv));
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_minilm: %s\n", error.what());
        return 1;
    }
}
