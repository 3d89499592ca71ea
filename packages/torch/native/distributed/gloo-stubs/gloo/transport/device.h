// See ../context.h.
#pragma once

namespace gloo {
namespace transport {

class Device;

}  // namespace transport
}  // namespace gloo
