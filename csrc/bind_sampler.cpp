// The sampler as Python sees it: for tests and benchmarks; a program calls the kernel itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <vector>

#include "batch_checks.h"
#include "bind_arrays.h"
#include "bind_names.h"
#include "bindings.h"
#include "cpu/cache_line.h"
#include "cpu/sampler.h"
#include "cpu/sampler_philox.h"

namespace nb = nanobind;

namespace OCTAVO_NS {

namespace {

std::vector<LogitEdit> edits_of(const Array<const int32_t, 1>& ids, const Matrix<const float>& values, int64_t V) {
  const int64_t count = (int64_t)ids.shape(0);
  const auto rows = rows_of("edits", values, count, 3);
  check_values("edit_ids", ids, 0, V - 1);
  std::vector<LogitEdit> edits;
  for (int64_t i = 0; i < count; i++) {
    const float* row = rows.data + i * rows.stride;
    edits.push_back({ids.data()[i], row[0], row[1], row[2]});
  }
  return edits;
}

nb::tuple sample(const Array<float, 1>& logits, const char* mode, float temperature, int64_t top_k, float top_p, float min_p,
                 uint64_t seed, int64_t position, int64_t num_logprobs, int64_t forced_token,
                 const std::optional<Array<const int32_t, 1>>& edit_ids, const std::optional<Matrix<const float>>& edits,
                 const std::optional<Array<const uint32_t, 1>>& allowed, const std::optional<Array<int32_t, 1>>& top_ids,
                 const std::optional<Array<float, 1>>& top_logprobs, const std::optional<Array<const int32_t, 1>>& score_ids,
                 const std::optional<Array<float, 1>>& scores) {
  const int64_t V = (int64_t)logits.shape(0);
  check_range("vocabulary", V, 1, INT32_MAX);
  check_choice(temperature, top_k, top_p, min_p);
  check_range("num_logprobs", num_logprobs, -1, V);
  check_range("forced_token", forced_token, -1, V - 1);
  if (edit_ids.has_value() != edits.has_value()) fail("edit_ids and edits must be given together");
  const std::vector<LogitEdit> changes = edits ? edits_of(*edit_ids, *edits, V) : std::vector<LogitEdit>();
  if (allowed) check_length("allowed", *allowed, (V + 31) / 32);
  if (num_logprobs > 0) {
    if (!top_ids || !top_logprobs) fail("top_ids and top_logprobs must be given with num_logprobs = %lld", (long long)num_logprobs);
    check_length("top_ids", *top_ids, num_logprobs);
    check_length("top_logprobs", *top_logprobs, num_logprobs);
  }
  if (score_ids.has_value() != scores.has_value()) fail("score_ids and scores must be given together");
  if (score_ids) {
    check_values("score_ids", *score_ids, -1, V - 1);
    check_length("scores", *scores, (int64_t)score_ids->shape(0));
  }
  const SampleParams params = {temperature, (int32_t)top_k, top_p, min_p, seed, position, (int32_t)num_logprobs,
                               (int32_t)forced_token, changes.data(), (int64_t)changes.size(),
                               allowed ? allowed->data() : nullptr, score_ids ? score_ids->data() : nullptr,
                               score_ids ? (int64_t)score_ids->shape(0) : 0};
  std::vector<uint8_t> scratch((size_t)sampler_scratch_bytes(V) + 64, 0xff);
  uint8_t* aligned = (uint8_t*)whole_lines((int64_t)(uintptr_t)scratch.data());
  SampleResult result;
  sample_row(logits.data(), V, params, logprobs_mode(mode), aligned, &result, top_ids ? top_ids->data() : nullptr,
             top_logprobs ? top_logprobs->data() : nullptr, scores ? scores->data() : nullptr);
  return nb::make_tuple(result.token_id, result.status, result.rank, result.logprob);
}

void philox(const Array<uint32_t, 1>& counter, const Array<const uint32_t, 1>& key) {
  check_length("counter", counter, 4);
  check_length("key", key, 2);
  philox4x32(counter.data(), key.data());
}

}  // namespace

void bind_sampler(nb::module_& m) {
  m.def("sample_row", &sample, nb::arg("logits").noconvert(), nb::kw_only(), nb::arg("mode") = "raw_logprobs",
        nb::arg("temperature") = 0.0f, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0f, nb::arg("min_p") = 0.0f, nb::arg("seed") = 0,
        nb::arg("position") = 0, nb::arg("num_logprobs") = -1, nb::arg("forced_token") = -1,
        nb::arg("edit_ids").noconvert() = nb::none(), nb::arg("edits").noconvert() = nb::none(),
        nb::arg("allowed").noconvert() = nb::none(), nb::arg("top_ids").noconvert() = nb::none(),
        nb::arg("top_logprobs").noconvert() = nb::none(), nb::arg("score_ids").noconvert() = nb::none(),
        nb::arg("scores").noconvert() = nb::none(),
        "Sample one row, which is changed. Edits are rows of (bias, repetition, penalty). Returns (token, status, rank, logprob).");
  m.def("philox4x32", &philox, nb::arg("counter").noconvert(), nb::arg("key").noconvert(), "Ten rounds on `counter`, in place.");
  m.def("philox_uniform", &philox_uniform, nb::arg("seed"), nb::arg("position"), nb::arg("draw"), "A number in [0, 1).");
}

}  // namespace OCTAVO_NS
