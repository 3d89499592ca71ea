// A lane over NCCL: a communicator of two ranks and a stream for one direction between them.
#pragma once

#include "../distributed/device-lane.h"

namespace pw {

std::shared_ptr<DeviceLane> make_nccl_lane(const LaneRequest& request);

}  // namespace pw
