// Result and Status are part of the public API; this is their name inside the project.
#pragma once

#include "hunch/result.h"
