#include "trainer/files/data/build_dataset.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "trainer/files/data/megatron/indexed_dataset_builder.h"
#include "trainer/files/data/tokenizers/make_tokenizer.h"
#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// A document on its way from its file to the data set.
struct Document {
  std::string text;
  std::string file;
  bool may_hold_zeros = false;  ///< no file of a folder, of which zeros say that it is no text
  std::vector<std::int32_t> ids;
  bool skipped = false, done = false;
};

/// Documents in order: the reader puts them in, any worker encodes one, the writer takes them out
/// in the order of the reader. Bounded in bytes, so that memory does not grow with the input.
class Line {
 public:
  void put(Document document) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return bytes_ < kMostBytes || error_; });
    if (error_) return;
    bytes_ += document.text.size();
    waiting_.push_back(std::make_shared<Document>(std::move(document)));
    order_.push_back(waiting_.back());
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  void fail(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    closed_ = true;
    changed_.notify_all();
  }
  /// The next document to encode; null: there will be none.
  std::shared_ptr<Document> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !waiting_.empty() || closed_; });
    if (waiting_.empty() || error_) return nullptr;
    auto document = std::move(waiting_.front());
    waiting_.pop_front();
    return document;
  }
  void finish(Document& document) {
    const std::lock_guard lock(mutex_);
    document.done = true;
    changed_.notify_all();
  }
  /// The next encoded document in order; null at the end. Throws what went wrong on another thread.
  std::shared_ptr<Document> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return error_ || (!order_.empty() && order_.front()->done) || (order_.empty() && closed_);
    });
    if (error_) std::rethrow_exception(error_);
    if (order_.empty()) return nullptr;
    auto document = std::move(order_.front());
    order_.pop_front();
    bytes_ -= document->text.size();
    changed_.notify_all();
    return document;
  }

 private:
  static constexpr std::size_t kMostBytes = 256 << 20;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Document>> waiting_, order_;
  std::size_t bytes_ = 0;
  bool closed_ = false;
  std::exception_ptr error_;
};

void read_documents(const BuildRequest& request, Line& line) {
  try {
    for (const std::string& input : request.inputs) {
      for (const std::filesystem::path& file : list_text_files(input, "input")) {
        const bool zeros = is_json_lines(file) || file == std::filesystem::path(input);
        for_each_document(file, request.json_key, [&](std::string text) {
          line.put({std::move(text), file.string(), zeros, {}});
        });
      }
    }
    line.close();
  } catch (...) {
    line.fail(std::current_exception());
  }
}

void encode_documents(const BuildRequest& request, Tokenizer& tokenizer, Line& line) {
  try {
    while (const auto document = line.take()) {
      const std::string& text = document->text;
      document->skipped =
          text.empty() ||
          !(document->may_hold_zeros ? valid_utf8_prefix(text) == text.size() : is_text(text));
      if (!document->skipped) {
        tokenizer.encode(document->text, document->ids);
        if (request.append_eod) document->ids.push_back(*tokenizer.eos_id());
      }
      line.finish(*document);
    }
  } catch (...) {
    line.fail(std::current_exception());
  }
}

std::string progress_line(const BuildResult& result, Clock::time_point start) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  char text[160];
  std::snprintf(text, sizeof text, "%lld documents, %.1f MB, %lld tokens, %.1f MB/s",
                static_cast<long long>(result.documents), static_cast<double>(result.bytes) / 1e6,
                static_cast<long long>(result.tokens),
                static_cast<double>(result.bytes) / 1e6 / std::max(seconds, 1e-9));
  return text;
}

void write_documents(Line& line, const std::function<void(const std::vector<std::int32_t>&)>& add,
                     BuildResult& result, const std::function<void(const std::string&)>& progress) {
  const Clock::time_point start = Clock::now();
  Clock::time_point reported = start;
  while (const auto document = line.next()) {
    if (document->skipped) {
      if (result.skipped++ == 0) result.first_skipped = document->file;
      continue;
    }
    add(document->ids);
    ++result.documents;
    result.bytes += static_cast<std::int64_t>(document->text.size());
    result.tokens += static_cast<std::int64_t>(document->ids.size());
    if (Clock::now() - reported > std::chrono::seconds(2)) {
      reported = Clock::now();
      progress(progress_line(result, start));
    }
  }
  progress(progress_line(result, start));
}

}  // namespace

BuildResult tokenize_documents(const BuildRequest& request,
                               const std::function<void(const std::vector<std::int32_t>&)>& add,
                               const std::function<void(const std::string&)>& progress) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (int i = 0; i < request.workers; ++i) tokenizers.push_back(make_tokenizer(request.tokenizer));
  if (request.append_eod && !tokenizers[0]->eos_id()) {
    throw ConfigError(
        "the tokenizer names no end-of-sequence token, which ends each document: name it "
        "(eos_token in tokenizer_config.json), or give --no-append-eod");
  }
  for (const std::string& note : tokenizers[0]->notes()) log_warning(note);
  BuildResult result;
  result.vocab_size = tokenizers[0]->vocab_size();
  Line line;
  std::vector<std::jthread> threads;
  threads.emplace_back([&] { read_documents(request, line); });
  for (const auto& tokenizer : tokenizers)
    threads.emplace_back(
        [&request, &line, &tokenizer] { encode_documents(request, *tokenizer, line); });
  try {
    write_documents(line, add, result, progress);
  } catch (...) {
    line.fail(std::current_exception());
    throw;
  }
  if (result.documents == 0) {
    throw ConfigError("input: no document with text in " + request.inputs[0] +
                      (result.skipped > 0
                           ? ": " + std::to_string(result.skipped) +
                                 " are empty or no text, such as " + result.first_skipped
                           : ""));
  }
  return result;
}

BuildResult build_dataset(const BuildRequest& request,
                          const std::function<void(const std::string&)>& progress) {
  const TokenType type = token_type_for(make_tokenizer(request.tokenizer)->vocab_size());
  IndexedDatasetBuilder builder(request.output, type);
  const auto add = [&](const std::vector<std::int32_t>& ids) {
    builder.add_item(ids);
    builder.end_document();
  };
  BuildResult result = tokenize_documents(request, add, progress);
  result.type = name_of(type);
  builder.finalize();
  return result;
}

}  // namespace trellis::trainer
