// The filters' names, for the table in filters_lists.cpp. Each does what jinja2's filter of its name does.
#pragma once

#include "text/jinja/interpreter.h"

namespace hunch::jinja::filters {

using In = Interpreter&;
using Args = const Arguments&;

using Filter = Result<Value>(In, const Value&, Args);
Filter to_int, to_float, absolute, round, string, lower, upper, capitalize, trim, replace, title, indent, format, safe, escape,
    tojson, otherwise;

}
