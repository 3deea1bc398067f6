// The filters' names, for the table in filters_lists.cpp. Each does what jinja2's filter of its name does.
#pragma once

#include "text/jinja/interpreter.h"

namespace hunch::jinja::filters {

using In = Interpreter&;
using Args = const Arguments&;

Result<Value> to_int(In, const Value&, Args);
Result<Value> to_float(In, const Value&, Args);
Result<Value> absolute(In, const Value&, Args);
Result<Value> round(In, const Value&, Args);
Result<Value> string(In, const Value&, Args);
Result<Value> lower(In, const Value&, Args);
Result<Value> upper(In, const Value&, Args);
Result<Value> capitalize(In, const Value&, Args);
Result<Value> trim(In, const Value&, Args);
Result<Value> replace(In, const Value&, Args);
Result<Value> center(In, const Value&, Args);
Result<Value> title(In, const Value&, Args);
Result<Value> indent(In, const Value&, Args);
Result<Value> truncate(In, const Value&, Args);
Result<Value> wordcount(In, const Value&, Args);
Result<Value> format(In, const Value&, Args);
Result<Value> safe(In, const Value&, Args);
Result<Value> escape(In, const Value&, Args);
Result<Value> tojson(In, const Value&, Args);
Result<Value> otherwise(In, const Value&, Args);
Result<Value> attr(In, const Value&, Args);
Result<Value> urlencode(In, const Value&, Args);

}  // namespace hunch::jinja::filters
