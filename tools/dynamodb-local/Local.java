import com.amazonaws.services.dynamodbv2.local.main.ServerRunner;
import com.amazonaws.services.dynamodbv2.local.server.DynamoDBProxyServer;
import java.lang.reflect.Field;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** Starts DynamoDB Local on the loopback interface; it has no option for that and binds to all. */
public final class Local {
    public static void main(String[] arguments) throws Exception {
        DynamoDBProxyServer proxy = ServerRunner.createServerFromCommandLineArgs(
            new String[] {"-inMemory", "-sharedDb", "-disableTelemetry", "-port", arguments[0]});
        for (Field field : DynamoDBProxyServer.class.getDeclaredFields()) {
            if (Server.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                for (Connector connector : ((Server) field.get(proxy)).getConnectors()) {
                    ((ServerConnector) connector).setHost("127.0.0.1");
                }
            }
        }
        proxy.start();
        // It ends with whoever started it.
        while (System.in.read() >= 0) {}
        System.exit(0);
    }
}
