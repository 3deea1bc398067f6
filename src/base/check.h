// HUNCH_CHECK is needed by the public headers too; this is its name inside the project.
#pragma once

#include "hunch/check.h"
