// What was computed on a GPU with messages that never came is no result: set by the thread that watches them, and thrown
// where values would be read.
#pragma once

#include <string>

namespace pw {

void set_device_failure(const char* code, const std::string& why);
void clear_device_failure();
void check_device_failure();

}  // namespace pw
