// The command `heed`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>

#include "heed/heed.hpp"
#include "runtime/cli/commands.h"
#include "runtime/cli/output_files.h"

namespace {

using namespace heed_cli;

struct CommandLine {
    CLI::App app{"Attention kernels, generated ahead of time.", "heed"};
    CLI::App *kernels, *run, *check;
    CLI::Option *run_path;
    Options options;
    KernelFilter filter;
    bool wants_template = false;

    CommandLine() {
        app.set_version_flag("--version", std::string("heed ") + heed_version());
        app.failure_message(CLI::FailureMessage::help);
        app.require_subcommand(0, 1);
        app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
        app.footer("\nExit status: 0 success, 2 invalid input, 3 unsupported or no device, 1 anything else.\n"
                   "heed COMMAND --help: the options of a command.");
        kernels =
            app.add_subcommand("kernels", "Lists the kernels of attention and of operations: what each serves, whether "
                                          "this machine can run it.");
        kernels->add_option("--isa", filter.isa, "only kernels of this instruction set")
            ->type_name("ISA")
            ->check(CLI::IsMember(isa_words));
        kernels->add_option("--dtype", filter.dtype, "only kernels for tensors of this type")
            ->type_name("TYPE")
            ->check(CLI::IsMember(dtype_words));
        kernels->add_option("--name", filter.name, "only kernels whose names have this part")->type_name("PART");
        kernels->add_flag("--here", filter.here, "only kernels that this machine can run");
        kernels->add_flag("--json", filter.json, "as one JSON object");
        run = app.add_subcommand(
            "run", "Computes the case, writes out and lse into NAME.out.safetensors, prints the kernel and "
                   "its speed. Where it fails it leaves no such file, not even an older one.");
        check = app.add_subcommand("check", "Computes the case and compares it with a reference in fp64; exit status 1 "
                                            "when an error exceeds its bound.");
        run_path = add_options(run);
        run->add_option("--repeat", options.repeat, "run as often and tell the fastest; default: 1")
            ->check(CLI::Range(1, 1000000));
        run->add_flag("--template", wants_template,
                      "print the problem of a case as JSON with all defaults; run nothing");
        add_options(check)->required();
    }

private:
    // Returns CASE.
    CLI::Option *add_options(CLI::App *command) {
        CLI::Option *const path = command->add_option(
            "CASE", options.case_path,
            "a file NAME.safetensors: arrays q, k, v and, as used, mask, bias, kv_lens, ...; the problem "
            "is JSON in its __metadata__ under \"heed_problem\"");
        const auto set_device = [this](const std::string &name) {
            options.device = name == "cuda" ? HEED_CUDA : HEED_CPU;
        };
        command->add_option_function<std::string>("--device", set_device, "cuda: the first CUDA device; default: cpu")
            ->check(CLI::IsMember({"cpu", "cuda"}));
        command->add_option("--kernel", options.kernel, "this kernel or none")->type_name("NAME");
        command->add_option("--threads", options.threads, "at most; default: the CPUs of this process")
            ->check(CLI::Range(1, 1024));
        return path;
    }
};

int run_command(CommandLine *line, int argc, char **argv) {
    line->app.parse(argc, argv);
    if (line->kernels->parsed()) return list_kernels(line->filter);
    if (line->run->parsed() && line->wants_template) return print_template();
    if (line->run->parsed() && line->run_path->empty()) throw CLI::RequiredError("CASE");
    if (line->run->parsed()) return run_case(line->options);
    if (line->check->parsed()) return check_case(line->options);
    throw CLI::RequiredError::Subcommand(1);
}

int exit_status_of(heed_status status) {
    if (status == HEED_INVALID_ARGUMENT) return exit_invalid;
    return status == HEED_UNSUPPORTED || status == HEED_NO_DEVICE ? exit_unsupported : exit_internal;
}

int report(int status, const char *sentence) {
    std::fprintf(stderr, "heed: %s\n", sentence);
    return status;
}

int run_and_report(CommandLine *line, int argc, char **argv) {
    try {
        return run_command(line, argc, argv);
    } catch (const CLI::ParseError &error) {
        return line->app.exit(error) == 0 ? exit_ok : exit_invalid;
    } catch (const InvalidInput &error) {
        return report(exit_invalid, error.what());
    } catch (const heed::Error &error) {
        return report(exit_status_of(error.status()), error.what());
    } catch (const std::bad_alloc &) {
        return report(exit_internal, "out of memory");
    } catch (const std::exception &error) {
        return report(exit_internal, error.what());
    }
}

}  // namespace

int main(int argc, char **argv) {
    int status = exit_internal;
    try {
        CommandLine line;
        status = run_and_report(&line, argc, argv);
        if (status == exit_ok || !line.run->parsed()) return status;
        for (const std::string &path : line.run_path->results()) remove_outputs(path);
    } catch (const std::exception &error) {
        return report(status, error.what());
    }
    return status;
}
