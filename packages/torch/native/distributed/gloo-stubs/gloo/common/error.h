// See context.h: nothing of this header is needed.
#pragma once
