// From what is known of each seat, and who runs, to the rows of one step: every index is checked here, once per call.
#pragma once

#include <cstdint>
#include <vector>

#include "batch_checks.h"
#include "cpu/executor.h"
#include "cpu/isa.h"

namespace OCTAVO_NS {

// One row a seat.
struct SeatTable {
  const int32_t* data = nullptr;
  int64_t num_seats = 0, columns = 0;
};

struct SeatTables {
  SeatTable token_ids;
  std::vector<SeatTable> blocks;  // per cache group; of a state group one column, the slot
};

// Who computes how many tokens. Shapes: R requests.
struct StepPlan {
  const int32_t *seats, *num_computed_tokens, *num_scheduled_tokens;
  int64_t num_requests;
  const StateSave* saves;
  int64_t num_saves;
};

class StepRows {
 public:
  // What is returned points into this object, until the next call.
  Batch lay_out(const SeatTables& tables, const StepPlan& plan, const BatchLimits& limits);

 private:
  struct GroupRows {
    std::vector<int32_t> block_tables;
    std::vector<int64_t> slot_mapping;
  };

  void lay_out_requests(const SeatTable& token_ids, const StepPlan& plan, const BatchLimits& limits);
  GroupTables lay_out_group(const SeatTable& table, const StepPlan& plan, const GroupLimits& limits, GroupRows& rows) const;

  std::vector<int32_t> token_ids_, positions_, query_start_loc_, seq_lens_;
  std::vector<GroupRows> groups_;
};

}  // namespace OCTAVO_NS
