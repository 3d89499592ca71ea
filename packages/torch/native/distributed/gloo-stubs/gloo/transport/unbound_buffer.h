// See ../context.h.
#pragma once

namespace gloo {
namespace transport {

class UnboundBuffer;

}  // namespace transport
}  // namespace gloo
