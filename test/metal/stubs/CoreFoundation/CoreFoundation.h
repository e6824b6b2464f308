#pragma once

#include <math.h>  // as Apple's does

typedef double CFTimeInterval;
