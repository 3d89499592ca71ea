#include "../core.h"
namespace pw {
void init_hot_ops(Env&, napi_value) {}
}  // namespace pw
